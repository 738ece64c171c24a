"""The demo: a byte-level GPT trained on real text through the public face of the engine.

It reads as an example. Nothing here is special-cased by the layers below, and none of them imports it.
"""
