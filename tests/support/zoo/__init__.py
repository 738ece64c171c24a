"""A zoo of small nasty models, each with its unit rule and a loss that any process can compute for any rank."""

from support.zoo import experts, interfaces, storage, structure, transformers

ZOO = {
    entry.name: entry for module in (transformers, structure, interfaces, storage, experts) for entry in module.ENTRIES
}
