"""Recall tasks: a text or a conversation states a random key, and a later question needs it."""

import tasks

NOUNS = "code key password number word sign token name mark secret".split()
CONSONANTS = "BCDFGHJKLMNPQRSTVWXZ"


def random_value(rng, prose):
    """Returns digits, letters and digits, or words. The prose cannot predict them."""
    pick = rng.random()
    if pick < 0.45:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(3, 8)))
    if pick < 0.7:
        letters = "".join(rng.choice(CONSONANTS) for _ in range(rng.randrange(1, 4)))
        return f"{letters}-{rng.randrange(10, 10000)}"
    return "-".join(rng.choice(prose.words) for _ in range(rng.randrange(2, 4)))


def random_facts(rng, prose, count):
    """Returns distinct (subject, value) pairs such as ("code of Boaz", "48213")."""
    facts = {}
    while len(facts) < count:
        name = rng.choice(prose.names) if rng.random() < 0.8 else tasks.invented_city(rng)
        facts[f"{rng.choice(NOUNS)} of {name}"] = random_value(rng, prose)
    return list(facts.items())


def statement(rng, subject, value):
    return rng.choice(("The {} is {}.", "Remember this: the {} is {}.", "Now the {} was {}.")).format(subject, value)


def question(rng, subject):
    return rng.choice(("What is the {}?", "Tell me the {}.", "What was the {}?", "Do you remember the {}?")).format(
        subject
    )


def answer(subject, value):
    return f"The {subject} is {value}."


def distance(rng, limit):
    """Returns a log-uniform number of tokens, so that every stage of the curriculum has short distances."""
    return int(30 * (max(limit, 40) / 30) ** rng.random())


def filler_with_facts(rng, prose, facts, tokens):
    """Returns about `tokens` tokens of prose with the statements of the facts between its sentences."""
    sentences = prose.sentences(rng, tokens)
    places = sorted((rng.randrange(len(sentences) + 1) for _ in facts), reverse=True)
    order = list(facts)
    rng.shuffle(order)
    for place, (subject, value) in zip(places, order):
        sentences.insert(place, statement(rng, subject, value))
    return " ".join(sentences)


def planted_in_prose(rng, prose, limit):
    """Returns one long user turn of prose with facts, then questions in several turns."""
    thinking = rng.random() < 0.2
    facts = random_facts(rng, prose, rng.choice((1, 1, 2, 3, 4, 6, 8)))
    text = filler_with_facts(rng, prose, facts, distance(rng, limit))
    asked = list(facts)
    rng.shuffle(asked)
    messages = tasks.system(rng)
    for i, (subject, value) in enumerate(asked):
        prompt = question(rng, subject)
        messages.append(tasks.user(f"{text}\n\n{prompt}" if i == 0 else prompt))
        messages.append(tasks.assistant(answer(subject, value), "I look it up." if thinking else None))
    return tasks.Sample(messages, thinking=thinking, kind="recall", extra={"facts": facts})


def planted_in_chat(rng, prose, limit):
    """Returns facts in the first turns, other turns between, questions at the end."""
    facts = random_facts(rng, prose, rng.choice((1, 2, 2, 3, 4)))
    messages = tasks.system(rng)
    for subject, value in facts:
        messages += [tasks.user(statement(rng, subject, value)), tasks.assistant("I will remember it.")]
    budget = distance(rng, limit)
    while budget > 0:
        if rng.random() < 0.3:
            turn = tasks.sum_turn(rng, False)
        else:
            passage = " ".join(prose.sentences(rng, rng.randrange(20, 160)))
            turn = (tasks.user(f"Listen: {passage}"), tasks.assistant("I listen."))
        budget -= 12 + sum(len(m["content"]) for m in turn) // 4
        messages += turn
    asked = list(facts)
    rng.shuffle(asked)
    for subject, value in asked:
        messages += [tasks.user(question(rng, subject)), tasks.assistant(answer(subject, value))]
    return tasks.Sample(messages, kind="recall", extra={"facts": facts})


def plain_text(rng, prose, limit):
    """Returns [(text, weight)] without chat marks: facts in prose, and the same facts again at the end.

    The values of the second statements have the loss weight.
    """
    facts = random_facts(rng, prose, rng.choice((1, 2, 4, 6)))
    pieces = [(filler_with_facts(rng, prose, facts, distance(rng, limit)), 0)]
    asked = list(facts)
    rng.shuffle(asked)
    for subject, value in asked:
        pieces.append((f" The {subject} is", 0))
        pieces.append((f" {value}.", 1))
    return pieces


def repeated_words(rng, prose, limit):
    """Returns a random word list, filler, and the list again: copying without any other clue."""
    words = " ".join(rng.choice(prose.words) for _ in range(rng.randrange(8, 60)))
    gap = " ".join(prose.sentences(rng, distance(rng, limit))) if rng.random() < 0.7 else ""
    mark = rng.choice(prose.names)
    return [(f"List {mark}: {words}.\n{gap}\nList {mark}:", 0), (f" {words}.", 1)]
