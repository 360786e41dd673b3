"""Follow a sandbox to its end, through restarts and lost connections, and prove that nothing was missed.

OMOI_URL=http://127.0.0.1:18000 OMOI_TOKEN=omoi_pat_… python follow.py sandbox_…    (Python 3.11, nothing else)
"""

import hashlib
import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("OMOI_URL", "http://127.0.0.1:18000") + "/graphql"
FOLLOW = """subscription Follow($sandbox: ID!) { sandboxEvents(sandboxId: $sandbox) {
  caughtUp reset { reason firstAvailableSeq } events { id seq type } } }"""
DIGEST = "query Digest($sandbox: ID!) { sandbox(id: $sandbox) { digest { lastSeq sha256 } } }"
FINAL = {"UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND", "BAD_USER_INPUT", "COST_EXCEEDED"}
SILENCE_SECONDS = 45  # the server says something every 15


class Interrupted(Exception):
    """The stream goes on when it is asked for again; any other error would only come again."""


class Follower:
    """What was seen of one sandbox. Whoever keeps the events keeps `after`, `seq` and `chain` with them."""

    def __init__(self, sandbox):
        self.sandbox, self.after, self.ended = sandbox, None, False
        self.seq, self.chain, self.expected = 0, bytes(32), None  # what the chain has to be at some seq

    def ask(self, query, **headers):
        body = json.dumps({"query": query, "variables": {"sandbox": self.sandbox}}).encode()
        headers |= {"authorization": f"Bearer {os.environ['OMOI_TOKEN']}", "content-type": "application/json"}
        try:
            return urllib.request.urlopen(urllib.request.Request(URL, body, headers), timeout=SILENCE_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise
            raise Interrupted from error

    def read(self):
        """True at the sandbox's end; False, or an error, where the stream was only interrupted."""
        asked = False
        resume = {"last-event-id": self.after} if self.after else {}
        with self.ask(FOLLOW, accept="text/event-stream", **resume) as stream:
            for line in stream:  # it ends with \n; str.splitlines would cut texts at more than that
                if not line.endswith(b"\n"):
                    return False  # cut off
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "id":
                    cursor = value
                elif name == "data" and value:
                    payload = data_of(json.loads(value))["sandboxEvents"]
                    self.take(payload)
                    self.after = cursor  # only now: what was not taken is sent again
                    if self.ended or (payload["caughtUp"] and not asked):
                        asked = True
                        with self.ask(DIGEST) as answer:
                            self.expected = data_of(json.load(answer))["sandbox"]["digest"]
                        if self.verified() and self.ended:
                            return True
        return False

    def take(self, payload):
        if reset := payload["reset"]:
            if reset["firstAvailableSeq"] > 1:
                raise LookupError(reset["reason"])  # its beginning is gone: begin at `digest.cursor` instead
            self.seq, self.chain, self.expected = 0, bytes(32), None
            print("again from the beginning:", reset["reason"], flush=True)
        for event in payload["events"]:
            self.seq, self.chain = event["seq"], hashlib.sha256(self.chain + event["id"].encode()).digest()
            self.ended = event["type"] == "COMPLETED"  # the last event, however the sandbox has ended
            print(self.seq, event["type"], flush=True)
            self.verified()

    def verified(self):
        if self.expected is None or self.expected["lastSeq"] != self.seq:
            return False
        if self.expected["sha256"] != self.chain.hex():
            raise LookupError(f"These are not the server's events up to {self.seq}.")
        print("verified up to", self.seq, flush=True)
        return True


def data_of(answer):
    if errors := answer.get("errors"):
        raise (LookupError if FINAL & {one["extensions"]["code"] for one in errors} else Interrupted)(errors)
    return answer["data"]


follower, pause, finished = Follower(sys.argv[1]), 0.25, False
while not finished:
    before = follower.after
    try:
        finished = follower.read()
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, Interrupted):
        pass
    pause = 0.25 if follower.after != before else min(2 * pause, 15)
    if not finished:
        time.sleep(pause * random.uniform(0.5, 1.5))
