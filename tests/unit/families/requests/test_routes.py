"""Routes are few, whatever clients ask for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.routes import CHILDREN, NODES, Routes


def test_a_path_is_its_own_route_until_its_place_turns_out_to_vary() -> None:
    routes = Routes()
    names = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(CHILDREN + 5)]
    found = [routes.route(1, f"/wiki/{name}") for name in names]
    assert found == [f"/wiki/{name}" for name in names[:CHILDREN]] + ["/wiki/*"] * 5
    assert routes.route(1, f"/wiki/{names[0]}") == "/wiki/*"  # one route for one resource, from here on
    assert routes.route(1, "/v1/chat/completions") == "/v1/chat/completions"


def test_processes_do_not_share_routes() -> None:
    routes = Routes()
    for i in range(CHILDREN + 1):
        routes.route(1, "/" + "x" * (i + 1))
    assert routes.route(2, "/x") == "/x"
    routes.forget(1)
    assert routes.route(1, "/x") == "/x"


@given(st.lists(st.text(alphabet="/abcdefgh", max_size=12), max_size=400))
def test_the_number_of_routes_is_bounded(paths: list[str]) -> None:
    routes = Routes()
    found = {routes.route(1, "/" + path) for path in paths}
    assert len(found) <= 2 * NODES


def test_a_flood_of_paths_does_not_grow() -> None:
    routes = Routes()
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = {routes.route(1, f"/{a}/{b}/{c}") for a in letters for b in letters for c in letters}
    assert len(found) <= NODES + CHILDREN
    assert routes.route(1, "/a/b/c") in found
