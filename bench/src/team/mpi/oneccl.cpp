// The collectives of oneCCL for ranks.c, which starts the ranks with MPI. oneCCL has an interface for C++ only.
#include <cstring>
#include <exception>
#include <oneapi/ccl.hpp>
#include <optional>
#include <vector>

namespace {
ccl::shared_ptr_class<ccl::kvs> store;
std::optional<ccl::communicator> team;
std::vector<ccl::event> pending;
ccl::datatype type;
ccl::reduction op;
} // namespace

extern "C" {
enum { ONECCL_ADDRESS_BYTES = 256 };

/* Rank 0 makes the address at which all ranks meet. */
void oneccl_address(char *address) {
    store = ccl::create_main_kvs();
    auto made = store->get_address();
    static_assert(ccl::kvs::address_max_size == ONECCL_ADDRESS_BYTES);
    memcpy(address, made.data(), made.size());
}

void oneccl_join(const char *address, int rank, int ranks) {
    if (rank != 0) {
        ccl::kvs::address_type met;
        memcpy(met.data(), address, met.size());
        store = ccl::create_kvs(met);
    }
    team.emplace(ccl::create_communicator(ranks, rank, store));
}

void oneccl_leave(void) {
    pending.clear();
    team.reset();
    store.reset();
}

/* Whether oneCCL has this type. An operation without a name is none, or a broadcast. */
int oneccl_prepare(const char *type_name, const char *op_name) {
    static const struct { const char *name; ccl::datatype type; } types[] = {
        {"float32", ccl::datatype::float32}, {"float64", ccl::datatype::float64}, {"int32", ccl::datatype::int32},
        {"int64", ccl::datatype::int64}, {"int8", ccl::datatype::int8}, {"uint8", ccl::datatype::uint8},
        {"bfloat16", ccl::datatype::bfloat16}, {"float16", ccl::datatype::float16}};
    op = !strcmp(op_name, "min") ? ccl::reduction::min : !strcmp(op_name, "max") ? ccl::reduction::max : ccl::reduction::sum;
    for (auto &of : types) {
        if (!strcmp(of.name, type_name)) {
            type = of.type;
            return 1;
        }
    }
    return 0;
}

/* Begins a collective; `count` elements of the whole tensor, or of each rank's part of it. */
void oneccl_begin(const char *collective, int broadcast, char *source, char *sink, long count) {
    if (broadcast)
        pending.push_back(ccl::broadcast(source, count, type, 0, *team));
    else if (!strcmp(collective, "all-reduce"))
        pending.push_back(ccl::allreduce(source, sink, count, type, op, *team));
    else if (!strcmp(collective, "reduce-scatter"))
        pending.push_back(ccl::reduce_scatter(source, sink, count, type, op, *team));
    else if (!strcmp(collective, "all-gather"))
        pending.push_back(ccl::allgather(source, sink, count, type, *team));
    else
        pending.push_back(ccl::alltoall(source, sink, count, type, *team));
}

void oneccl_wait(void) {
    for (auto &event : pending) event.wait();
    pending.clear();
}
}
