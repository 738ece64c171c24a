// Python bindings of the port: module overlap._shared. Tensors arrive as addresses, so torch's headers are not
// needed; overlap/comm/same_host.py is the only caller and keeps them alive. The GIL is released while bytes move.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "port.h"

namespace nb = nanobind;

namespace overlap::shared {
namespace {

using Fields = std::tuple<int, std::uint64_t, std::uintptr_t, std::size_t>;

std::vector<Message> messages_of(const std::vector<Fields>& rows) {
    std::vector<Message> messages;
    messages.reserve(rows.size());
    for (const auto& [peer, tag, address, size] : rows) {
        messages.push_back({peer, tag, reinterpret_cast<std::byte*>(address), size});
    }
    return messages;
}

const char* word(Trouble trouble) {
    switch (trouble) {
        case Trouble::none: return "";
        case Trouble::late: return "no message has come or gone in time";
        case Trouble::gone: return "its process has ended";
        case Trouble::closed: return "it has let go of the model, or of its communicator";
        case Trouble::failed: return "its own call has failed";
        case Trouble::interrupted: return "the call was interrupted";
    }
    return "";
}

// What is wrong with each rank; empty where nothing is.
std::vector<std::string> exchange(Port& port, const std::vector<Fields>& receives, const std::vector<Fields>& sends,
                                  double patience_s) {
    const std::vector<Message> in = messages_of(receives), out = messages_of(sends);
    std::vector<Trouble> troubles;
    {
        nb::gil_scoped_release released;
        troubles = port.exchange(in, out, patience_s);
    }
    std::vector<std::string> words;
    for (const Trouble trouble : troubles) words.emplace_back(word(trouble));
    return words;
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> address(const Port& port) {
    const Address address = port.address();
    return {address.pid, address.fd, address.token};
}

bool connect(Port& port, int peer, std::int64_t pid, std::int64_t fd, std::int64_t token) {
    return port.connect(peer, {pid, fd, token});
}

}  // namespace
}  // namespace overlap::shared

NB_MODULE(_shared, module) {
    using namespace overlap::shared;
    module.doc() = "Messages between the ranks of one host; used through overlap.comm.same_host.";
    nb::set_leak_warnings(false);  // a program may end while its model, and so its ports, are alive
    // What a longer wait would not have mended.
    module.attr("FINAL") = nb::make_tuple(word(Trouble::gone), word(Trouble::closed));
    nb::class_<Port>(module, "Port")
        .def(nb::init<int, int, std::size_t>())
        .def_prop_ro("address", &address)
        .def_prop_ro("nbytes", &Port::size)
        .def("connect", &connect)
        .def("exchange", &exchange)
        .def("interrupt", &Port::interrupt)
        .def("close", &Port::close);
}
