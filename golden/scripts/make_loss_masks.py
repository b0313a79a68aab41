#!/usr/bin/env python3
"""Makes golden/chat/loss_masks.jsonl: which tokens of a conversation the assistant wrote, as transformers says it.

    pip install transformers jinja2 && python3 golden/scripts/make_loss_masks.py      (from the root of the repository)

Truth: apply_chat_template(..., return_assistant_tokens_mask=True) of transformers (5.23 when this was written), with the tokenizer of
golden/tale and templates that mark the assistant's text with {% generation %}. A line has template, messages, tokens and loss_mask.
"""
import json
import pathlib

from transformers import PreTrainedTokenizerFast

GOLDEN = pathlib.Path(__file__).resolve().parent.parent

TEMPLATES = [
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message.content + '<|im_end|>\\n' }}{% endgeneration %}"
    "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}{{ 'Q: ' + message.content }}{% elif message.role == 'system' %}{{ message.content }}"
    "{% else %}{{ '\\nA:' }}{% generation %}{{ ' ' + message.content + eos_token }}{% endgeneration %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\\nA:' }}{% endif %}",
]
MESSAGES = [
    [{"role": "user", "content": "Who lived in the forest?"}, {"role": "assistant", "content": "An old king and 3 foxes."}],
    [{"role": "system", "content": "Tell it shortly."}, {"role": "user", "content": "Once?"}, {"role": "assistant", "content": "Once, a café \U0001f98a."},
     {"role": "user", "content": "And then?"}, {"role": "assistant", "content": "\n\nThen  night came"}, {"role": "user", "content": "Thank you."}],
]


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / "tale/tokenizer.json"), bos_token="<|begin_of_sentence|>", eos_token="<|end_of_sentence|>")
    with open(GOLDEN / "chat/loss_masks.jsonl", "w", encoding="utf-8") as f:
        for template in TEMPLATES:
            for messages in MESSAGES:
                out = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
                assert 0 < sum(out["assistant_masks"]) < len(out["input_ids"])
                f.write(json.dumps(dict(template=template, messages=messages, tokens=out["input_ids"], loss_mask=out["assistant_masks"])) + "\n")


if __name__ == "__main__":
    main()
