"""Events reach whoever collects in the same context, once per kind and round on the log, all of them on disk."""

import json
import logging
import threading

from nestling.events import EventLog, collect, forward, report


def test_a_run_logs_a_kind_once_per_round_and_keeps_all_on_disk(tmp_path, caplog):
    log = EventLog(tmp_path)
    with caplog.at_level(logging.WARNING, "nestling"), log.active():
        for number in (1, 2):
            log.round = number
            report("worker lost", "worker 7 ended")
            report("worker lost", "worker 8 ended")
    assert [record.getMessage() for record in caplog.records] == ["round 1: worker 7 ended", "round 2: worker 7 ended"]
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(line["round"], line["message"][7]) for line in lines] == [(1, "7"), (1, "8"), (2, "7"), (2, "8")]
    assert log.totals() == {"worker lost": 4}


def test_events_of_a_worker_travel_and_are_told_by_the_run():
    with collect() as events:
        report("fallback", "the fused kernel is missing", logging.INFO)
    log = EventLog(None)
    with log.active():
        forward(events)
    assert log.totals() == {"fallback": 1}


def test_runs_in_two_threads_do_not_mix(tmp_path):
    logs = [EventLog(None), EventLog(None)]
    both = threading.Barrier(2, timeout=10)

    def run(k):
        with logs[k].active():
            both.wait()
            report(f"kind {k}", "something", logging.DEBUG)
            both.wait()

    threads = [threading.Thread(target=run, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [log.totals() for log in logs] == [{"kind 0": 1}, {"kind 1": 1}]
