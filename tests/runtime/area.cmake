# SPDX-License-Identifier: Apache-2.0
# The examples are programs of users: they see libkvonce.so and the public headers only.
kvonce_add_test(example_embedding TIMEOUT 60 LABELS examples COMMAND examples_embedding)
