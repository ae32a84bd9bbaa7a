"""A real service, described by the document that its framework makes of it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any


def make_app() -> Any:
    """Return the application: each operation says back what it understood."""
    import fastapi
    from fastapi import Body, Cookie, Depends, File, Form, Header, HTTPException, Path, Query, UploadFile
    from fastapi.responses import PlainTextResponse, Response
    from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBasic, HTTPBasicCredentials, HTTPBearer
    from pydantic import BaseModel

    class Colour(str, Enum):
        red = "red"
        green = "green"

    class Tree(BaseModel):
        name: str
        colour: Colour = Colour.red
        children: list["Tree"] = []
        note: str | None = None

    app = fastapi.FastAPI(title="Echo", version="1")
    bearer, basic = HTTPBearer(scheme_name="token"), HTTPBasic(scheme_name="login")
    in_query = APIKeyQuery(name="key", scheme_name="queryKey")
    in_header = APIKeyHeader(name="X-Key", scheme_name="headerKey")

    @app.get("/items/{item_id}", tags=["items"])
    def get_item(
        item_id: int,
        q: str | None = None,
        tags: Annotated[list[str] | None, Query()] = None,
        ratio: float = 0.5,
        flag: bool = False,
        x_trace: Annotated[str | None, Header()] = None,
        session_id: Annotated[str | None, Cookie()] = None,
    ) -> dict[str, Any]:
        """Say back all parameters."""
        return {"item_id": item_id, "q": q, "tags": tags, "ratio": ratio, "flag": flag,
                "session_id": session_id, "x_trace": x_trace}  # fmt: skip

    @app.get("/both/{id}")
    def both(
        path_value: Annotated[str, Path(alias="id")], query_value: Annotated[str, Query(alias="id")]
    ) -> list[str]:
        """Take two arguments of one name."""
        return [path_value, query_value]

    @app.post("/trees", status_code=201, tags=["trees"])
    def post_tree(tree: Tree) -> Tree:
        """Take a recursive body."""
        return tree

    @app.put("/raw/{name}")
    def put_raw(name: str, body: Annotated[str, Body(media_type="text/plain")]) -> Any:
        """Take a text."""
        return PlainTextResponse(f"{name}: {body}")

    @app.post("/form")
    def form(
        name: Annotated[str, Form()], age: Annotated[int, Form()], tags: Annotated[list[str], Form()]
    ) -> Any:
        """Take a form."""
        return [name, age, tags]

    @app.post("/upload")
    async def upload(files: Annotated[list[UploadFile], File()], title: Annotated[str, Form()]) -> Any:
        """Take files."""
        return [title, [[f.content_type, (await f.read()).hex()] for f in files]]

    @app.get("/picture")
    def picture() -> Any:
        """Give an image."""
        return Response(b"\x89PNG\r\n\x1a\nrest", media_type="image/png")

    @app.delete("/items/{item_id}", deprecated=True, tags=["items"], status_code=204)
    def delete_item(item_id: int) -> None:
        """Give no content."""

    @app.get("/fail/{status}")
    def fail(status: int) -> None:
        """Fail."""
        raise HTTPException(status, "as you like")

    @app.get("/secure/bearer", tags=["secure"])
    def with_bearer(got: Annotated[Any, Depends(bearer)]) -> bool:
        return bool(got.credentials == "tok-123456")

    @app.get("/secure/basic", tags=["secure"])
    def with_basic(got: Annotated[HTTPBasicCredentials, Depends(basic)]) -> list[str]:
        return [got.username[::-1], got.password[::-1]]

    @app.get("/secure/query", tags=["secure"])
    def with_query(got: Annotated[str, Depends(in_query)]) -> str:
        return got[::-1]

    @app.get("/secure/header", tags=["secure"])
    def with_header(got: Annotated[str, Depends(in_header)]) -> str:
        return got[::-1]

    return app


@contextlib.contextmanager
def running_app() -> Iterator[str]:
    """Run the application and give its URL."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(make_app(), port=0, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
