"""A job that holds cards: bears witness to its start and its end, and complains if anybody else has a card of its own.

owner.py FOLDER NAME SECONDS
"""

import fcntl
import os
import sys
import time
from pathlib import Path

folder, name = Path(sys.argv[1]), sys.argv[2]
witness = os.open(folder / "witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
held = []
for card in os.environ.get("CUDA_VISIBLE_DEVICES", "none").split(","):
    held.append(os.open(folder / ("own-" + card), os.O_RDWR | os.O_CREAT, 0o600))
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.write(witness, b"two owners of %s\n" % card.encode())
os.write(witness, b"start %s on %d\n" % (name.encode(), len(held)))
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    time.sleep(0.1)
    print("at work", flush=True)
os.write(witness, b"done %s\n" % name.encode())
