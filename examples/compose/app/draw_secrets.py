"""Draws what has to be secret, where it is not there yet: draw_secrets.py DIRECTORY

    DIRECTORY/firstflight/kek             under which ticket keys lie in the store
    DIRECTORY/firstflight/store-password  the server's, at the store
    DIRECTORY/valkey/users.acl            the store's users; others may only send PING
    DIRECTORY/firstflight/token           for the console and the metrics
    DIRECTORY/prometheus/token            the same, for Prometheus to show

Each file is for its owner alone: the server takes no other.
"""

import os
import sys

# Users of the images: firstflight's own, and nobody, as whom Prometheus and Valkey run.
FIRSTFLIGHT, NOBODY = 65532, 65534

# What the server says to the store: docs/operate/cluster.md.
USERS = """user default on nopass resetkeys -@all +ping
user firstflight on >{} ~firstflight:* +set +get +getdel +del +pttl +time +info +wait +sadd +srem \
+smembers +setbit +pexpire
"""


def main(directory):
    def draw(*files):
        """Files with one secret in them: all of them anew, or none."""
        files = [(os.path.join(directory, name), owner, form) for name, owner, form in files]
        if not all(os.path.exists(path) for path, _, _ in files):
            secret = os.urandom(32).hex()
            for path, owner, form in files:
                write(path, form.format(secret), owner)

    line = "{}\n"
    draw(("firstflight/kek", FIRSTFLIGHT, line))
    draw(("firstflight/store-password", FIRSTFLIGHT, line), ("valkey/users.acl", NOBODY, USERS))
    draw(("firstflight/token", FIRSTFLIGHT, line), ("prometheus/token", NOBODY, line))


def write(path, text, owner):
    if os.path.exists(path):
        os.unlink(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if os.geteuid() == 0:
            os.chown(path, owner, owner)


main(*sys.argv[1:])
