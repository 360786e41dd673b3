# Follow a sandbox to its end, through restarts and lost connections, and prove that nothing was missed.
#   OMOI_URL=http://127.0.0.1:18000 OMOI_TOKEN=omoi_pat_… python follow.py sandbox_…    (Python 3.11, nothing else)
import json
import random
import sys
import time
from hashlib import sha256
from http.client import HTTPException
from os import environ
from types import SimpleNamespace
from urllib.request import Request, urlopen

URL = environ.get("OMOI_URL", "http://127.0.0.1:18000") + "/graphql"
AUTHORIZATION = f"Bearer {environ['OMOI_TOKEN']}"
HEADERS = {"authorization": AUTHORIZATION, "content-type": "application/json", "accept": "text/event-stream"}
FOLLOW = """subscription Follow($sandbox: ID!, $after: String) {
  sandboxEvents(sandboxId: $sandbox, after: $after) { cursor reset { reason } events { id seq type } } }"""
DIGEST = "query Digest($sandbox: ID!) { sandbox(id: $sandbox) { digest { lastSeq sha256 } } }"
PASSING = {"SLOW_CONSUMER", "RATE_LIMITED", "INTERNAL"}  # any other error would only come again

seen = SimpleNamespace(after=None, seq=0, chain=bytes(32), ended=False)  # whoever keeps the events keeps it with them


def ask(query, **variables):
    """The data of each answer. Where asking again may help, what it raises is an OSError or an HTTPException."""
    body = json.dumps({"query": query, "variables": {"sandbox": sys.argv[1], **variables}}).encode()
    with urlopen(Request(URL, body, HEADERS), timeout=45) as stream:  # the server says something every 15 seconds
        for line in stream:  # they end with \n; str.splitlines would cut texts at more than that
            if line.startswith(b"data: {") and line.endswith(b"\n"):
                answer = json.loads(line.removeprefix(b"data: "))
                if codes := {error["extensions"]["code"] for error in answer.get("errors", ())}:
                    raise (ConnectionError if codes <= PASSING else LookupError)(answer["errors"])
                yield answer["data"]
    raise ConnectionError("The stream was cut off.")


def follow():
    digest = None  # what the chain has to be at its `lastSeq`
    for data in ask(FOLLOW, after=seen.after):
        payload = data["sandboxEvents"]
        if payload["reset"]:
            print("again from the beginning:", payload["reset"]["reason"], flush=True)
            seen.seq, seen.chain, digest = 0, bytes(32), None  # whoever keeps the events throws them away
        for event in payload["events"]:
            seen.seq, seen.chain = event["seq"], sha256(seen.chain + event["id"].encode()).digest()
            seen.ended = event["type"] == "COMPLETED"  # the last event, however the sandbox has ended
            print(seen.seq, event["type"], flush=True)
            verify(digest)
        seen.after = payload["cursor"]  # only now: what was not taken is sent again
        if digest is None or seen.ended:
            digest = next(ask(DIGEST))["sandbox"]["digest"]
            if verify(digest) and seen.ended:
                return


def verify(digest):
    if digest is None or digest["lastSeq"] != seen.seq:
        return False  # the server was further than we are: compared when we get there
    if digest["sha256"] != seen.chain.hex():
        raise LookupError("These are not the server's events.")
    print("verified up to", seen.seq, flush=True)
    return True


pause = 0.25
while True:
    before = seen.after
    try:
        follow()
        break  # at the sandbox's end; whatever is raised before, the stream goes on from where we are
    except (OSError, HTTPException) as error:
        if getattr(error, "code", 500) < 500:  # a status of HTTP: it would only come again
            raise
    pause = 0.25 if seen.after != before else min(2 * pause, 15)
    time.sleep(pause * random.uniform(0.5, 1.5))
