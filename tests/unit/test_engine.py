"""An operation that a rank gives up, because the ranks were in different ones, while the others may just begin it."""

import threading
from collections import deque
from types import SimpleNamespace

import pytest

from farandole.comm.named import cancellation
from farandole.comm.named.engine import Engine
from farandole.comm.named.letters import ANNOUNCE, FORGET, LEAVE, letters_from, message_of, verdicts_from
from farandole.comm.named.negotiate import OperationRequest, Verdict
from farandole.errors import MismatchError, RankFailedError

KEY = "allreduce.x"
SENT = SimpleNamespace(test=lambda: True)


class Line:
    """One rank's end of the line between two; `heard` is called with what it sends, and may put answers into `inbox`."""

    size = 2
    any_thread = False

    def __init__(self, rank, heard):
        self.rank, self.heard, self.inbox = rank, heard, deque()

    def send_message(self, data, dest, tag):
        self.heard(self, letters_from(data) if self.rank else verdicts_from(data))
        return SENT

    def poll_message(self, tag):
        return self.inbox.popleft() if self.inbox else None

    def answer(self, *verdicts):
        self.inbox.append((1 - self.rank, message_of(verdicts)))


def engine_on(line):
    cancelled = []
    made = Engine(line, (0, 1), lambda batch: [op.run(verdict) for op, verdict in batch], "", cancelled.append, lambda _: None, 2)
    return made, cancelled


def operation(value):
    return SimpleNamespace(request=OperationRequest(KEY, "allreduce", ()), run=lambda verdict: value)


def give_up():
    raise MismatchError("the ranks are in different operations")


def asked_to_forget(letters):
    return [content for what, content in letters if what == FORGET]


def test_what_the_others_have_begun_takes_place():
    def coordinator(line, letters):
        if asked_to_forget(letters):
            line.answer(Verdict(KEY))  # it was on its way

    engine, cancelled = engine_on(Line(1, coordinator))
    handle = engine.submit(operation("sum"), background=False)
    assert engine.wait(handle, meanwhile=give_up) == "sum" and cancelled == []


def test_what_has_taken_place_is_no_error():
    line = Line(1, lambda line, letters: None)
    engine, cancelled = engine_on(line)
    handle = engine.submit(operation("sum"), background=False)
    line.answer(Verdict(KEY))
    assert engine.wait(handle, meanwhile=give_up) == "sum" and cancelled == []


def test_what_is_forgotten_is_an_error():
    def coordinator(line, letters):
        for key, number in asked_to_forget(letters):
            line.answer(Verdict(key, forgotten=(1, number)))

    engine, cancelled = engine_on(Line(1, coordinator))
    handle = engine.submit(operation("sum"), background=False)
    with pytest.raises(MismatchError):
        engine.wait(handle, meanwhile=give_up)
    assert cancelled == [KEY]


def test_a_coordinator_that_is_elsewhere_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(cancellation, "FORGET_S", 0.02)
    asked = []
    line = Line(1, lambda line, letters: asked.extend(asked_to_forget(letters)))
    engine, cancelled = engine_on(line)
    with pytest.raises(MismatchError):
        engine.wait(engine.submit(operation("first"), background=False), meanwhile=give_up)
    assert cancelled == [KEY]
    again = engine.submit(operation("second"), background=False)
    line.answer(Verdict(KEY, forgotten=(1, asked[0][1])))  # late, and of the first one
    assert not engine.poll(again)
    line.answer(Verdict(KEY))
    assert engine.wait(again) == "second"


def test_the_coordinator_pairs_nothing_with_a_request_that_was_taken_back():
    answers = []
    line = Line(0, lambda line, letters: answers.extend(letters))
    engine, _ = engine_on(line)
    line.inbox.append((1, message_of([(ANNOUNCE, OperationRequest(KEY, "allreduce", ()))])))
    engine.advance()
    line.inbox.append((1, message_of([(FORGET, (KEY, 7))])))
    mine = engine.submit(operation("sum"), background=False)
    assert not engine.poll(mine)
    assert answers == [Verdict(KEY, forgotten=(1, 7))]
    line.inbox.append((1, message_of([(ANNOUNCE, OperationRequest(KEY, "allreduce", ()))])))
    assert engine.wait(mine) == "sum"


def test_where_the_coordinator_has_left_the_thread_ends_and_a_farewell_is_sent():
    said = []
    line = Line(1, lambda line, letters: said.extend(what for what, _ in letters))
    line.any_thread = True
    engine, _ = engine_on(line)
    handle = engine.submit(operation("sum"), background=True)
    (thread,) = (t for t in threading.enumerate() if t.name == "farandole-engine")
    line.answer(Verdict("", "rank 0 has exited", left=True))
    with pytest.raises(RankFailedError, match="rank 0 has exited and takes part in nothing more"):
        engine.wait(handle)
    thread.join(timeout=10)
    assert not thread.is_alive()
    engine.close("has exited")
    assert said[-1] == LEAVE
    assert engine.everyone_left() and engine.settled()
