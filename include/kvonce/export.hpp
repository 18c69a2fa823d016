// SPDX-License-Identifier: Apache-2.0
// Marks what libkvonce.so exports. Everything else is hidden.
#pragma once

/// Goes before the name of a public class or the declaration of a public function:
/// `class KVONCE_API Runtime`, `KVONCE_API std::string version();`.
#define KVONCE_API __attribute__((visibility("default")))
/// Goes before the name of what is nested in a public class and yet no part of the API.
#define KVONCE_INTERNAL __attribute__((visibility("hidden")))
