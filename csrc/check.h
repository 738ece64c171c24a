// Errors with the grammar of overlap/errors.py: subject must rule, but got value; cure.
// std::invalid_argument arrives in Python as ValueError.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace overlap {

inline void require(bool holds, const char* subject, const char* rule, std::int64_t got, const char* cure) {
    if (holds) return;
    throw std::invalid_argument(std::string(subject) + " must " + rule + ", but got " + std::to_string(got) +
                                "; " + cure);
}

}  // namespace overlap
