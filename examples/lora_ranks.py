"""One GPT-2, adapters of ranks 2 to 16: devices of four sizes against the smallest rank for all (needs nestling[lora]).

A small GPT-2 learns the characters of half of Shakespeare's text and is then frozen. The speakers of the other half are
the clients, who train adapters of peft: all of rank 2, or of rank 16, 8, 4 and 2 in equal numbers.

    python lora_ranks.py --data-dir DATA --seeds 3       # the table of docs/results.md
    python lora_ranks.py --quick                         # sentences that are made up, no download
"""

import argparse
import copy
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

import nestling
from nestling.data import Text, load_text
from nestling.tasks import next_token

RANK = 16


@dataclass
class Scale:
    """How much is trained: the net, the steps before, and the rounds."""

    width: int = 96
    layers: int = 2
    steps: int = 500
    rounds: int = 15
    clients: int = 40
    sequences: int = 64  # at most, of a client


QUICK = Scale(width=32, layers=1, steps=120, rounds=2, clients=8, sequences=32)


def halves(quick: bool, data_dir: str | None, scale: Scale) -> tuple[Text, Tensor, list[dict[str, Tensor]], Tensor]:
    """Return the text, the sequences to learn first, those of every client, and those to test on."""
    if quick:  # user k writes on topic k % 16: the first half of the topics, and the second
        text = load_text("words", vocabulary=250, length=12)
        before = [text.users[k] for k in range(400) if k % 16 < 8]
        users = [torch.cat([text.users[k + 16 * more] for more in range(4)]) for k in range(8, 16)]
        test = [text.test[k] for k in range(200) if k % 16 >= 8]
    else:  # speakers, as they first appear
        text = load_text("shakespeare", data_dir, length=64)
        sizes = torch.tensor([len(part) for part in text.users]).cumsum(0)
        middle = int((sizes <= sizes[-1] / 2).sum())
        before, users, test = text.users[:middle], text.users[middle:], text.test[middle:]
        users = sorted(users, key=len, reverse=True)[: scale.clients]
    clients = [{"input_ids": part[: scale.sequences].long()} for part in users]
    return text, torch.cat(list(before)).long(), clients, torch.cat(list(test)).long()


def pretrained(text: Text, sequences: Tensor, scale: Scale, file: Path | None = None) -> GPT2LMHeadModel:
    """Return a GPT-2 that has learned the first half; `file` keeps it for the next time."""
    torch.manual_seed(0)
    sizes = {"n_embd": scale.width, "n_layer": scale.layers, "n_head": 4, "n_positions": text.width}
    dropout = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0)
    words = text.classes + text.special
    model = GPT2LMHeadModel(GPT2Config(vocab_size=words, bos_token_id=0, eos_token_id=0, **sizes, **dropout))
    if file is not None and file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))
        return model
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(scale.steps):
        batch = sequences[torch.randint(len(sequences), (32,))]
        loss = cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=words - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == scale.steps - 1:
            print(f"before: step {step + 1} of {scale.steps}, loss {loss.item():.3f}", flush=True)
    if file is not None:
        torch.save(model.state_dict(), file)
    return model


@torch.no_grad()
def perplexity_of(model: GPT2LMHeadModel, sequences: Tensor, padding: int) -> float:
    """Return the perplexity of a model on sequences."""
    logits = torch.cat([model.eval()(part[:, :-1]).logits for part in sequences.split(256)])
    return cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten(), ignore_index=padding).exp().item()


def with_adapters(model: GPT2LMHeadModel, rank: int) -> PeftModel:
    """Return the frozen model with an adapter on every linear layer; α/r is 2 for every rank."""
    torch.manual_seed(0)
    layers = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers, fan_in_fan_out=True)
    return get_peft_model(copy.deepcopy(model), config)


def main() -> None:
    """Train the model, then the adapters of every fleet, and print how well each fleet's model predicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="the folder of shakespeare.zip, or nestling data get shakespeare")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small net on text that needs no download")
    parser.add_argument("--out", type=Path, help="a folder for the runs, which go on from there")
    given = parser.parse_args()
    scale = QUICK if given.quick else Scale()
    text, before, clients, test = halves(given.quick, given.data_dir, scale)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    model = pretrained(text, before, scale, given.out and given.out / "pretrained.pt")

    def federate(rank: int, levels: str, seed: int, **options: str) -> nestling.Federated:
        name = "-".join([f"rank{rank}", levels, *options.values(), f"seed{seed}"])
        return nestling.federate(
            with_adapters(model, rank),
            clients,
            test={"input_ids": test},
            task=next_token(padding=text.padding),
            method="lora",
            levels=levels,
            rounds=scale.rounds,
            lr=3e-3,
            seed=seed,
            options=options,
            out=given.out and given.out / name,
            settings=[f"evaluate.every={scale.rounds}"],
        )

    fleets = {
        "rank 2 for all": (2, "a", {}),
        "ranks 2 to 16": (RANK, "a-b-c-d", {}),
        "ranks 2 to 16, by factors": (RANK, "a-b-c-d", {"merge": "factors"}),
        "ranks 2 to 16, rolling": (RANK, "a-b-c-d", {"pick": "rolling"}),
        "rank 16 for all": (RANK, "a", {}),
    }
    print(f"perplexity without adapters: {perplexity_of(model, test, text.padding):.3f}")
    print("| perplexity of ranks | 16 | 8 | 4 | 2 | sent |\n|---|---|---|---|---|---|")
    for name, (rank, levels, options) in fleets.items():
        runs = [federate(rank, levels, seed, **options).summary for seed in range(given.seeds)]
        cells = {}
        for level, cost in runs[0]["levels"].items():
            figures = [run["final"]["submodels"][level]["perplexity"] for run in runs]
            spread = f" ± {statistics.stdev(figures):.3f}" if len(runs) > 1 else ""
            cells[round(rank * cost["ratio"])] = f"{statistics.mean(figures):.3f}{spread}"
        sent = sum(run["bytes_up"] + run["bytes_down"] for run in runs) / len(runs)
        tested = [cells.get(size, "–") for size in (16, 8, 4, 2)]
        print("|", " | ".join([name, *tested, f"{sent / 1e6:.1f} MB"]), "|", flush=True)


if __name__ == "__main__":
    main()
