// A tool that NVTX loads into a process (NVTX_INJECTION64_PATH) and that prints what reaches it, one event per
// line. It stands in for Nsight Systems in test_nvtx.py. The constants and layouts are those of the NVTX 3 ABI.
// Built with -DDENIES_DOMAINS it says, as Nsight Systems 2022.4 and 2023.4 do, that no domain is enabled.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

using Function = void (*)();

struct ExportTable {
    size_t struct_size;
    int (*module_functions)(int module, Function*** table, unsigned* size);
};

struct EventAttributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    int64_t payload;
    int32_t message_type;
    const char* message;
};

enum { kCallbacks = 1, kCore2 = 5 };
enum { kRangePush = 4, kRangePop = 5, kNameCategory = 8, kRegisterString = 10, kDomainCreate = 12 };

// Handles are opaque to the program: a domain and a registered string are represented by their own text.
const char* domain_create(const char* name) { return strdup(name); }
const char* register_string(const char*, const char* text) { return strdup(text); }

void name_category(const char* domain, uint32_t id, const char* name) {
    std::printf("category %s %u %s\n", domain, id, name);
}

int push(const char* domain, const EventAttributes* event) {
    std::printf("push %s [%s] category %u payload %lld\n", domain, event->message, event->category,
                static_cast<long long>(event->payload));
    return 0;
}

int pop(const char* domain) {
    std::printf("pop %s\n", domain);
    return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(const void* (*get_export_table)(uint32_t)) {
    auto* callbacks = static_cast<const ExportTable*>(get_export_table(kCallbacks));
    Function** table = nullptr;
    unsigned size = 0;
    if (callbacks == nullptr || !callbacks->module_functions(kCore2, &table, &size)) return 0;
    *table[kDomainCreate] = reinterpret_cast<Function>(domain_create);
    *table[kRegisterString] = reinterpret_cast<Function>(register_string);
    *table[kNameCategory] = reinterpret_cast<Function>(name_category);
    *table[kRangePush] = reinterpret_cast<Function>(push);
    *table[kRangePop] = reinterpret_cast<Function>(pop);
    return 1;
}

#ifdef DENIES_DOMAINS
struct ExtensionSegment {
    size_t id, slot_count;
    intptr_t* slots;
};

struct ExtensionModule {
    uint16_t nvtx_version, struct_size, module, compatible;
    size_t segment_count;
    ExtensionSegment* segments;
};

enum { kDomainIsEnabled = 7 };

extern "C" int InitializeInjectionNvtxExtension(ExtensionModule* module) {
    auto* denied = +[](const char*) -> uint8_t { return 0; };
    module->segments[0].slots[kDomainIsEnabled] = reinterpret_cast<intptr_t>(denied);
    return 1;
}
#endif
