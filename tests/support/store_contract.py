"""What every store of ours must do, whatever it keeps things in."""

from __future__ import annotations

import base64
import itertools
import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolnexus.errors import ConfigurationError, StoreConflictError, StoreError
from toolnexus.stores import ConversationStore, MemoryStore, VersionedStore

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}

#: Ids that would lead out of a directory, or mean something to a file system or a database.
HOSTILE_IDS = [
    "../evil",
    "/abs",
    "a/b",
    "..",
    ".",
    "CON",
    "x" * 300,
    "x" * 512,
    "C:\\Windows\\system32",
    "'; DROP TABLE toolnexus_conversations; --",
    ":id",
    "%",
    "_",
    "line\nbreak",
    " ",
    "caf\u00e9",
    "cafe\u0301",
    "\U0001f600" * 512,
]

NOT_IDS = [None, 7, b"id", "", "a\0b", "x" * 513, "\udc9d", ["a"]]

_fresh = itertools.count()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
messages = st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=5)
again = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def fresh() -> str:
    """Return an id that no other test uses: a database server is shared by all of them."""
    return f"c{next(_fresh)}-{time.time_ns()}"


def append(store: VersionedStore, name: str, message: dict[str, Any]) -> None:
    """Add a message, trying again as long as others were faster."""
    while True:
        kept, version = store.load(name)
        try:
            store.save(name, [*(kept or []), message], expected=version)
        except StoreConflictError:
            time.sleep(0.001)
        else:
            return


def together(*functions: Callable[[], object]) -> None:
    """Run functions at the same time, each in a thread, and raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


class StoreContract:
    """The tests; a subclass or its module brings the fixture `store`."""

    # -- conversations

    def test_it_is_a_store_for_everybody(self, store: VersionedStore) -> None:
        """A store of ours has what the protocol for users' own asks for."""
        assert isinstance(store, ConversationStore)

    def test_nothing_is_there_at_first(self, store: VersionedStore) -> None:
        """A conversation that was never saved is None, with version 0."""
        name = fresh()
        assert store.get(name) is None
        assert store.load(name) == (None, 0)
        assert store.delete(name) is False

    def test_what_was_saved_comes_back(self, store: VersionedStore) -> None:
        """A save replaces all that was there, and the version grows."""
        name = fresh()
        first = store.save(name, [USER])
        second = store.save(name, [USER, ANSWER])
        assert second == first + 1
        assert store.load(name) == ([USER, ANSWER], second)

    def test_an_empty_conversation_is_not_a_missing_one(self, store: VersionedStore) -> None:
        """Saving no messages keeps a conversation without messages."""
        name = fresh()
        version = store.save(name, [])
        assert store.load(name) == ([], version)
        store.save(name, [USER])
        store.save(name, [])
        assert store.get(name) == []

    @again
    @given(kept=messages)
    def test_any_json_comes_back_as_it_was(self, store: VersionedStore, kept: list[dict[str, Any]]) -> None:
        """Plain JSON of any shape goes in and out unchanged, types of numbers included."""
        name = fresh()
        store.save(name, kept)
        back = store.get(name)
        assert back == kept
        assert json.dumps(back) == json.dumps(kept)

    @again
    @given(versions=st.lists(st.text("abc", max_size=6), min_size=1, max_size=6))
    def test_b153_any_rewriting_ends_as_the_last_save(
        self, store: VersionedStore, versions: list[str]
    ) -> None:
        """Appending, cutting, editing in the middle: what is kept is the last list, in its order."""
        name = fresh()
        for letters in versions:
            wanted = [{"role": "user", "content": letter} for letter in letters]
            store.save(name, wanted)
            assert store.get(name) == wanted
            assert [i.message_count for i in store.list(name)] == [len(wanted)]

    def test_values_are_copies(self, store: VersionedStore) -> None:
        """Changing what was put in or what came out changes nothing in the store."""
        name = fresh()
        mine: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
        store.save(name, mine)
        mine[0]["content"][0]["text"] = "changed"
        mine.append(ANSWER)
        back = store.get(name)
        assert back is not None
        back[0]["content"].clear()
        assert store.get(name) == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]

    # -- versions

    def test_a_lost_update_is_an_error(self, store: VersionedStore) -> None:
        """Who saves with a version that is not the current one overwrites nothing, and is told."""
        name = fresh()
        version = store.save(name, [USER])
        store.save(name, [USER, ANSWER], expected=version)
        with pytest.raises(StoreConflictError, match=f"not {version}: somebody else"):
            store.save(name, [USER], expected=version)
        assert store.load(name) == ([USER, ANSWER], version + 1)

    def test_version_zero_means_new(self, store: VersionedStore) -> None:
        """Expecting version 0 saves only what is not there yet."""
        name = fresh()
        store.save(name, [USER], expected=0)
        with pytest.raises(StoreConflictError, match="exists already"):
            store.save(name, [ANSWER], expected=0)
        assert store.get(name) == [USER]

    def test_a_conflict_on_a_missing_conversation_makes_none(self, store: VersionedStore) -> None:
        """Expecting a version of a conversation that is not there is a conflict that leaves no trace."""
        name = fresh()
        with pytest.raises(StoreConflictError, match="not there any more"):
            store.save(name, [USER], expected=3)
        assert store.get(name) is None
        assert store.list(name) == []

    def test_no_version_comes_twice(self, store: VersionedStore) -> None:
        """A conversation that is deleted and made anew does not pass for the old one."""
        name = fresh()
        old = store.save(name, [USER])
        assert store.delete(name) is True
        new = store.save(name, [ANSWER], expected=0)
        assert new > old
        with pytest.raises(StoreConflictError):
            store.save(name, [USER], expected=old)
        assert store.get(name) == [ANSWER]

    @pytest.mark.parametrize("expected", [-1, True, 1.0, "1"])
    def test_a_version_is_a_whole_number(self, store: VersionedStore, expected: Any) -> None:
        """An expected version that cannot be one is a mistake of the caller's."""
        with pytest.raises(ConfigurationError, match="expected must be"):
            store.save(fresh(), [USER], expected=expected)

    def test_his_07_no_update_is_lost_between_threads(self, store: VersionedStore) -> None:
        """Threads that append to the same and to different conversations at once lose nothing."""
        same, others = fresh(), [fresh() for _ in range(4)]

        def work(number: int) -> None:
            for turn in range(5):
                append(store, same, {"role": "user", "content": f"{number}.{turn}"})
                append(store, others[number], {"role": "user", "content": f"{turn}"})

        together(*(lambda n=n: work(n) for n in range(4)))
        kept = store.get(same) or []
        assert sorted(m["content"] for m in kept) == sorted(f"{n}.{t}" for n in range(4) for t in range(5))
        for name in others:
            assert [m["content"] for m in store.get(name) or []] == list("01234")

    def test_one_of_many_that_create_at_once_wins(self, store: VersionedStore) -> None:
        """When several make the same new conversation, one does and the others get a conflict."""
        name = fresh()
        lost = []

        def work(number: int) -> None:
            try:
                store.save(name, [{"role": "user", "content": str(number)}], expected=0)
            except StoreConflictError:
                lost.append(number)

        together(*(lambda n=n: work(n) for n in range(6)))
        assert len(lost) == 5
        assert store.get(name) == [{"role": "user", "content": str(({*range(6)} - {*lost}).pop())}]

    # -- listing, forking, moving

    def test_listing(self, store: VersionedStore) -> None:
        """A list has the conversation saved last first, and says what there is to know."""
        prefix = fresh()
        for letter in "abc":
            store.save(f"{prefix}/{letter}", [USER])
            time.sleep(0.002)
        store.save(f"{prefix}/a", [USER, ANSWER])
        infos = store.list(prefix)
        assert [i.id for i in infos] == [f"{prefix}/a", f"{prefix}/c", f"{prefix}/b"]
        assert infos[0].message_count == 2
        assert infos[0].version == infos[1].version + 1
        assert time.time() - 60 < infos[0].created_at < infos[0].updated_at <= time.time()
        assert store.list(prefix, limit=2) == infos[:2]
        assert store.list(prefix, limit=0) == []
        assert {i.id for i in store.list()} >= {i.id for i in infos}

    def test_a_prefix_is_not_a_pattern(self, store: VersionedStore) -> None:
        """No character of a prefix is special, and upper case is not lower case."""
        base = fresh()
        for end in ("%x", "_x", "ax", "Ax"):
            store.save(base + end, [USER])
        for end in ("%", "_", "a", "A"):
            assert [i.id for i in store.list(base + end)] == [base + end + "x"]

    @pytest.mark.parametrize("limit", [-1, True, "2", 1.5])
    def test_a_limit_is_a_whole_number(self, store: VersionedStore, limit: Any) -> None:
        """A limit that cannot be one is a mistake of the caller's."""
        with pytest.raises(ConfigurationError, match="limit must be"):
            store.list(limit=limit)

    def test_forking(self, store: VersionedStore) -> None:
        """A fork begins with what there was, and goes its own way from there."""
        name, other = fresh(), fresh()
        store.save(name, [USER])
        store.fork(name, other)
        store.save(other, [USER, ANSWER])
        assert store.get(name) == [USER]
        with pytest.raises(StoreConflictError):
            store.fork(name, other)
        with pytest.raises(StoreError, match="there is no conversation"):
            store.fork(fresh(), fresh())
        assert store.get(other) == [USER, ANSWER]

    def test_exporting_and_importing(self, store: VersionedStore) -> None:
        """A conversation can be carried to another store and back, under its id or another one."""
        name, other = fresh(), fresh()
        store.save(name, [USER, {"role": "assistant", "content": "gr\u00fc\u00df dich \U0001f600"}])
        text = store.export(name)
        elsewhere = MemoryStore()
        assert elsewhere.import_(text) == name
        assert store.import_(elsewhere.export(name), id=other) == other
        assert store.get(other) == store.get(name)
        with pytest.raises(StoreConflictError):
            store.import_(text)
        with pytest.raises(StoreError, match="there is no conversation"):
            store.export(fresh())

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "null",
            '{"format": "other"}',
            '{"format": "toolnexus.conversation", "format_version": 2, "id": "a", "messages": []}',
            '{"format": "toolnexus.conversation", "format_version": 1, "id": "a"}',
            '{"format": "toolnexus.conversation", "format_version": 1, "id": "a", "messages": ["x"]}',
            None,
        ],
    )
    def test_only_exported_text_is_imported(self, store: VersionedStore, text: Any) -> None:
        """Text that is no exported conversation is refused, and nothing is kept of it."""
        name = fresh()
        with pytest.raises(StoreError):
            store.import_(text, id=name)
        assert store.get(name) is None

    def test_an_imported_id_is_checked(self, store: VersionedStore) -> None:
        """An id in an export is as little trusted as any other."""
        text = '{"format": "toolnexus.conversation", "format_version": 1, "id": 7, "messages": []}'
        with pytest.raises(ConfigurationError):
            store.import_(text)

    # -- ids and values

    @pytest.mark.parametrize("name", HOSTILE_IDS)
    def test_his_09_an_id_is_only_data(self, store: VersionedStore, name: str) -> None:
        """Any text is a good id, and none means anything to whatever lies below."""
        store.delete(name)
        store.save(name, [{"role": "user", "content": name}])
        store.append_journal(name, {"id": name})
        assert store.get(name) == [{"role": "user", "content": name}]
        assert store.read_journal(name) == [{"id": name}]
        assert [i.id for i in store.list(name, limit=1) if i.id == name] or name in {
            i.id for i in store.list(name)
        }
        assert store.delete(name) is True

    @pytest.mark.parametrize("name", NOT_IDS)
    def test_his_09_what_is_no_id_is_refused(self, store: VersionedStore, name: Any) -> None:
        """An id must be text of 1 to 512 characters, without NUL and half characters: everywhere."""
        calls: list[Callable[[], object]] = [
            lambda: store.get(name),
            lambda: store.load(name),
            lambda: store.save(name, [USER]),
            lambda: store.delete(name),
            lambda: store.export(name),
            lambda: store.fork(name, "x"),
            lambda: store.fork("x", name),
            lambda: store.load_state(name),
            lambda: store.put_state(name, {}),
            lambda: store.delete_state(name),
            lambda: store.append_journal(name, {}),
            lambda: store.read_journal(name),
            lambda: store.clear_journal(name),
        ]
        if name != "":
            calls += [lambda: store.list(name), lambda: store.list_states(name)]
        for call in calls:
            with pytest.raises(ConfigurationError):
                call()

    def test_his_10_half_characters_are_replaced(self, store: VersionedStore) -> None:
        """A lone surrogate is stored as U+FFFD; two that belong together become their character."""
        name = fresh()
        store.save(name, [{"role": "user", "content": "a\udc9db", "k\ud800": ["\ud83d\ude00"]}])
        kept = [{"role": "user", "content": "a\ufffdb", "k\ufffd": ["\U0001f600"]}]
        assert store.get(name) == kept
        store.append_journal(name, {"text": "\udc9d"})
        assert store.read_journal(name) == [{"text": "\ufffd"}]

    @again
    @given(text=st.text(st.characters(codec=None, exclude_categories=())))
    def test_his_10_any_text_can_be_stored(self, store: VersionedStore, text: str) -> None:
        """Whatever text a model or a tool makes up, it is stored, and comes back as it can be written."""
        name = fresh()
        store.save(name, [{"role": "user", "content": text}])
        back = (store.get(name) or [])[0]["content"]
        assert back == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @pytest.mark.parametrize(
        ("value", "place"),
        [
            (b"\x89PNG", r"messages\[1\]\['content'\]\[0\] cannot be stored: bytes"),
            ({1: "a"}, r"messages\[1\]\['content'\]\[0\] cannot be stored: a key is int"),
            (math.nan, "nan has no form"),
            (math.inf, "inf has no form"),
            ({"a", "b"}, "set has no form"),
            (object(), "object has no form"),
            (10**400, "an integer of more than"),
        ],
    )
    def test_exe_02_what_is_not_json_is_refused(
        self, store: VersionedStore, value: object, place: str
    ) -> None:
        """Bytes, objects and numbers outside JSON are an error that says where; nothing is written."""
        name = fresh()
        version = store.save(name, [USER])
        with pytest.raises(StoreError, match=place):
            store.save(name, [USER, {"role": "tool", "content": [value]}])
        assert store.load(name) == ([USER], version)
        with pytest.raises(StoreError, match="the state"):
            store.put_state(name, {"v": value})
        with pytest.raises(StoreError, match="the journal entry"):
            store.append_journal(name, {"v": value})

    def test_exe_02_bytes_as_a_data_url_come_back(self, store: VersionedStore) -> None:
        """An image in its neutral form, base64 with its media type, survives saving and exporting."""
        name = fresh()
        url = "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode()
        image = {"role": "tool", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        store.save(name, [image])
        assert store.get(name) == [image]
        assert json.loads(store.export(name))["messages"] == [image]

    def test_endless_values_are_refused(self, store: VersionedStore) -> None:
        """A value that contains itself, or is nested beyond reason, is an error and no crash."""
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(StoreError, match="levels deep"):
            store.save(fresh(), [{"content": loop}])

    @pytest.mark.parametrize("value", [None, "hi", {"role": "user"}, [["role"]], ["hi"], 7, b"hi"])
    def test_messages_are_a_list_of_dicts(self, store: VersionedStore, value: Any) -> None:
        """Anything else in their place is an error that says so."""
        with pytest.raises(StoreError, match=r"must be a (list|dict)"):
            store.save(fresh(), value)

    def test_what_json_would_write_alike_is_taken(self, store: VersionedStore) -> None:
        """Tuples are kept as lists, and subclasses of text and numbers as what they are."""

        class Word(str):
            __slots__ = ()

        name = fresh()
        store.save(name, ({"role": Word("user"), "content": (1, True, 2.0)},))  # type: ignore[arg-type]
        assert store.get(name) == [{"role": "user", "content": [1, True, 2.0]}]

    # -- states

    def test_states(self, store: VersionedStore) -> None:
        """A state is a dict under a key, with versions like those of a conversation."""
        key = fresh()
        assert store.get_state(key) is None
        assert store.load_state(key) == (None, 0)
        first = store.put_state(key, {"step": 1}, expected=0)
        assert store.put_state(key, {"step": 2}, expected=first) == first + 1
        with pytest.raises(StoreConflictError):
            store.put_state(key, {"step": 9}, expected=first)
        with pytest.raises(StoreConflictError):
            store.put_state(fresh(), {"step": 9}, expected=4)
        assert store.load_state(key) == ({"step": 2}, first + 1)
        assert store.get_state(key) == {"step": 2}
        assert store.get(key) is None
        assert store.delete_state(key) is True
        assert store.delete_state(key) is False
        assert store.put_state(key, {}) > first + 1

    def test_states_are_listed_by_prefix(self, store: VersionedStore) -> None:
        """The keys come in the order of their characters, and no character is a pattern."""
        base = fresh()
        for end in ("b", "a", "\u00e9", "Z", "%"):
            store.put_state(base + end, {})
        assert store.list_states(base) == [base + end for end in ("%", "Z", "a", "b", "\u00e9")]
        assert store.list_states(base + "%") == [base + "%"]

    def test_a_state_is_a_dict(self, store: VersionedStore) -> None:
        """Anything else is refused."""
        with pytest.raises(StoreError, match="the state must be a dict, not list"):
            store.put_state(fresh(), [])  # type: ignore[arg-type]

    def test_no_state_is_lost_between_threads(self, store: VersionedStore) -> None:
        """Counting up in several threads, each with the version it read, counts every step."""
        key = fresh()

        def work() -> None:
            done = 0
            while done < 5:
                value, version = store.load_state(key)
                try:
                    store.put_state(key, {"n": (value or {"n": 0})["n"] + 1}, expected=version)
                except StoreConflictError:
                    continue
                done += 1

        together(*[work] * 4)
        assert store.get_state(key) == {"n": 20}

    # -- journals

    def test_journals(self, store: VersionedStore) -> None:
        """Entries come back in order, apart for every id, until they are cleared."""
        name, other = fresh(), fresh()
        for number in range(5):
            store.append_journal(name, {"n": number})
        store.append_journal(other, {"n": "other"})
        assert store.read_journal(name) == [{"n": n} for n in range(5)]
        store.clear_journal(name)
        assert store.read_journal(name) == []
        assert store.read_journal(other) == [{"n": "other"}]

    def test_a_save_can_clear_the_journal(self, store: VersionedStore) -> None:
        """The end of a durable run is one step: saved and cleared, or neither."""
        name = fresh()
        store.append_journal(name, {"n": 1})
        with pytest.raises(StoreConflictError):
            store.save(name, [USER], expected=7, clear_journal=True)
        assert store.read_journal(name) == [{"n": 1}]
        store.save(name, [USER])
        assert store.read_journal(name) == [{"n": 1}]
        store.save(name, [USER], clear_journal=True)
        assert store.read_journal(name) == []

    def test_deleting_takes_the_journal_along(self, store: VersionedStore) -> None:
        """Nothing of a deleted conversation is left."""
        name = fresh()
        store.save(name, [USER])
        store.append_journal(name, {"n": 1})
        store.delete(name)
        assert store.read_journal(name) == []
        assert store.list(name) == []

    def test_a_journal_entry_is_a_dict(self, store: VersionedStore) -> None:
        """Anything else is refused."""
        with pytest.raises(StoreError, match="the journal entry must be a dict, not str"):
            store.append_journal(fresh(), "x")  # type: ignore[arg-type]
