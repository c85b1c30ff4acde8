"""A Llama of random weights, small enough for a test: `python tools/tiny_model.py FOLDER`, with the Python of an engine's environment.

Nothing is fetched: the tokenizer is trained on Python's own library, in ASCII, so that every token is text and a streaming server sends
one piece a token.  Five million parameters, 10 MB; the same bytes each time.

Deliberately absent: sense.  It answers with noise, which is all that timing needs.
"""

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT, VOCABULARY = 4096, 8192
SPECIAL = ("<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for one in messages %}<|{{ one['role'] }}|>{{ one['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Byte pairs of what the library's sources say."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=[])
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    made.train_from_iterator((file.read_bytes().decode("ascii", "ignore") for file in sources), trainer)
    return made


def main(folder: str) -> None:
    """Write the model's directory."""
    words = tokenizer()
    start, end, pad = SPECIAL[:3]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=start, eos_token=end, pad_token=pad, model_max_length=CONTEXT
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=768,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    main(sys.argv[1])
