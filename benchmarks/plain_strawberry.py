"""The peer: a small schema served by Strawberry's own view, as its documentation sets it up."""

import socket

import strawberry
import uvicorn
from starlette.applications import Starlette
from strawberry.asgi import GraphQL


@strawberry.type
class User:
    name: str


@strawberry.type
class Viewer:
    kind: str
    user: User | None


@strawberry.type
class Query:
    @strawberry.field
    def viewer(self) -> Viewer:
        return Viewer(kind="USER", user=None)


app = Starlette()
view = GraphQL[None, None](strawberry.Schema(Query))
app.add_route("/graphql", view)

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
