"""Prompts that are chats: several turns, a system message, and templates that know no system role."""

import pytest
from tiny_model import make_tiny_model

from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es.noise import NoiseKind

GREEDY = Sampling(temperature=0, max_tokens=16)
RAW = Sampling(temperature=0, max_tokens=16, chat_template=False)
USER = {"role": "user", "content": "the quick brown"}
SYSTEM = {"role": "system", "content": "a lazy dog"}
TURNS = [USER, {"role": "assistant", "content": "fox"}, {"role": "user", "content": "jumps"}]
# Three templates: all roles; no system role, refused; no system role, silently left out.
ALL = (
    "{% for m in messages %}<|{{ 'assistant' if m['role'] == 'assistant' else 'user' }}|>{{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REFUSES = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + ALL
FORGETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}{% endif %}{% endfor %}<|assistant|>"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return load_engine(
        str(make_tiny_model(tmp_path_factory.mktemp("tiny"))), noise=NoiseKind(), device="cpu", threads=1
    )


@pytest.fixture
def templated(engine):
    """Gives the engine another chat template for one test."""
    own = engine.tokenizer.chat_template

    def use(template):
        engine.tokenizer.chat_template = template
        return engine

    yield use
    engine.tokenizer.chat_template = own


def reply(engine, prompt, sampling=GREEDY):
    return engine.generate([Request(prompt, 1)], sampling)[0]


def test_a_chat_of_one_user_message_is_the_text_itself(engine):
    assert reply(engine, [USER]) == reply(engine, USER["content"])


def test_every_turn_reaches_the_model_in_its_role(templated):
    engine = templated(ALL)
    text = "<|user|>the quick brown<|assistant|>fox<|user|>jumps<|assistant|>"
    assert reply(engine, TURNS) == reply(engine, text, RAW)


def test_a_template_that_knows_system_messages_writes_them_itself(templated):
    engine = templated(ALL)
    text = "<|user|>a lazy dog<|user|>the quick brown<|assistant|>"
    assert reply(engine, [SYSTEM, USER]) == reply(engine, text, RAW)


@pytest.mark.parametrize("template", [REFUSES, FORGETS], ids=["refuses", "forgets"])
def test_without_a_system_role_the_system_message_goes_into_the_first_user_message(templated, template):
    engine = templated(template)
    merged = reply(engine, "<|user|>a lazy dog\n\nthe quick brown<|assistant|>", RAW)
    assert reply(engine, [SYSTEM, USER]) == merged
    assert merged != reply(engine, [USER])
    alone = reply(engine, "<|user|>a lazy dog<|assistant|>", RAW)
    assert reply(engine, [SYSTEM]) == alone


def test_what_a_template_refuses_for_another_reason_is_one_sentence(templated):
    engine = templated("{{ raise_exception('Roles must alternate') }}")
    for chat in ([USER, USER], [SYSTEM, USER]):
        with pytest.raises(EngineError, match="refuses these messages: Roles must alternate"):
            reply(engine, chat)


def test_a_model_without_a_chat_template_reads_the_messages_one_below_the_other(engine):
    assert reply(engine, [SYSTEM, *TURNS], RAW) == reply(engine, "a lazy dog\n\nthe quick brown\n\nfox\n\njumps", RAW)


@pytest.mark.parametrize("chat", [[], [{"role": "tool", "content": "x"}], [{"role": "user"}], ["hello"],
                                  [{"role": "user", "content": 3}]])  # fmt: skip
def test_a_malformed_chat_is_refused(chat):
    with pytest.raises(ConfigurationError, match="message"):
        Request(chat, 1)
