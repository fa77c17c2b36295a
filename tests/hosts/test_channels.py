"""Channels and a relayed stream between ranks on two hosts, over their network."""

from pathlib import Path

from hosts import Network
from ranktest import run_ranks

SCRIPT = """
import sys, threading
import numpy as np
import farandole as fd
sys.path.append(RANKS)
from test_channels import in_a_ring

fd.init()
in_a_ring(fd)
stream = fd.Stream("far", {"x": ((300_000,), "float64")}, subscribers=1 + (fd.rank() == 0))
found = []

def read():
    found.extend(batch["x"].mean() for batch in stream.subscribe())

reading = threading.Thread(target=read)
reading.start()
if fd.rank() == 0:
    relaying = threading.Thread(target=fd.relay, args=(stream, 0, [1]))
    relaying.start()
    with stream.producer() as producer:
        for i in range(6):
            producer.put(x=np.full(300_000, float(i)))
    relaying.join()
else:
    fd.relay(stream, 0, [1])
reading.join()
fd.barrier()
result(found)
"""


def test_channels_and_a_relay(hosts: Network) -> None:
    script = SCRIPT.replace("RANKS", repr(str(Path(__file__).parents[1] / "ranks")))
    run = run_ranks(2, script, launcher="farandole", launcher_args=["--hosts", "alpha:1,beta:1"], within=hosts.on_head, env=hosts.variables, timeout=90)
    assert "UCX" not in run.stderr  # which complains of messages that nobody has received
    assert run.results == [[0, 1, 2, 3, 4, 5]] * 2
