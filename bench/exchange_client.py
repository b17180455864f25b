"""The ClientApp of `bench.devices`: sends what it gets back, a little changed, so that nothing is stored once for many.

It answers Nestling's server and Flower's FedAvg alike, without either's own code, so that what is compared is the way
there and back. A process is started for every message: NumPy and Flower are all that it imports.
"""

import json
import random

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

LARGE = 2**16  # bytes of an array from which on it is changed
app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]  # Flower is not installed where types are checked
def train(message: Message, context: Context) -> Message:
    """Return the arrays of a message, a little changed, in a reply as its server expects it."""
    content = reply_to(message.content, context.run_config["plan"])
    for name, record in content.array_records.items():
        content[name] = _changed(record)
    return Message(content, reply_to=message)


def reply_to(content: RecordDict, plan: str) -> RecordDict:
    """Return a reply with the same arrays, as the server expects it that sent them."""
    records = dict(content.array_records)
    header = content.get("nestling.header")
    if header is None:
        return RecordDict({**records, "metrics": MetricRecord({"num-examples": 10, "train_loss": 1.0})})
    job = json.loads(header["nestling.header"])
    reply = {name: job[name] for name in ("format", "version", "ticket", "samples")}
    reply |= {"message": "Trained", "plan": plan, "loss": 10.0, "correct": 1.0}
    config = {name: value for name, value in header.items() if name != "nestling.header"}
    return RecordDict({**records, "nestling.header": ConfigRecord({**config, "nestling.header": json.dumps(reply)})})


def _changed(record: ArrayRecord) -> ArrayRecord:
    factor = np.float32(1 + random.uniform(0.5, 1) * 1e-3)
    return ArrayRecord(
        {
            name: Array(array.numpy() * factor) if array.dtype == "float32" and len(array.data) > LARGE else array
            for name, array in record.items()
        }
    )
