"""Draws what has to be secret, where it is not there yet: draw_secrets.py DIRECTORY

    DIRECTORY/firstflight/kek      under which ticket keys lie in the store
    DIRECTORY/firstflight/token    for the console and the metrics
    DIRECTORY/prometheus/token     the same, for Prometheus to show

Each file is for its owner alone: the server takes no other.
"""

import os
import sys

# Users of the images: firstflight's own, and nobody, as whom Prometheus runs.
FIRSTFLIGHT, NOBODY = 65532, 65534


def main(directory):
    kek = os.path.join(directory, "firstflight", "kek")
    tokens = [os.path.join(directory, name, "token") for name in ("firstflight", "prometheus")]
    # The token last: where it is there, all is.
    if os.path.exists(tokens[-1]):
        return
    write(kek, drawn(), FIRSTFLIGHT)
    token = drawn()
    for path, owner in zip(tokens, (FIRSTFLIGHT, NOBODY)):
        write(path, token, owner)


def drawn():
    return os.urandom(32).hex() + "\n"


def write(path, text, owner):
    if os.path.exists(path):
        os.unlink(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if os.geteuid() == 0:
            os.chown(path, owner, owner)


main(*sys.argv[1:])
