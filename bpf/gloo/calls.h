/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every function that family gloo observes. The BPF programs and the probe targets come from these tables.
 *
 *   CALL(symbol, shape, elements, element_bytes, buffer, root, tag)
 *
 * shape: enum gloo_shape without SHAPE_. Of a collective the others are offsets in its options, which its first argument
 * leads to; NO: it has none there, or where is not known. The first word of all options leads to the gloo::Context
 * (a std::shared_ptr). As gloo/allreduce.h, broadcast.h, … have had them since 2018; measured on libtorch_cpu.so of
 * PyTorch 1.13.1. The mangled name has the options' type: a function with other options has another name.
 */
#ifndef OTELGPU_GLOO_CALLS_H
#define OTELGPU_GLOO_CALLS_H

enum gloo_shape {
	SHAPE_COLLECTIVE = 0,
	SHAPE_BACKWARD = 1, /* torch::autograd::Engine::execute: a backward pass */
	SHAPE_WAIT = 2,	    /* for collectives that other threads run */
	SHAPE_RECORDED =
		3, /* (result, name): a stretch that Python names, until RecordFunction::end */
	SHAPE_GROUP = 4, /* (this, store, rank, ranks): a group is made */
	SHAPE_SEND =
		5, /* (result, group, tensors, peer, tag): begins, and the result is what to wait for */
	SHAPE_RECEIVE = 6,	 /* likewise; without a peer from any rank */
	SHAPE_TRANSFER_WAIT = 7, /* for what one of these two began */
};

#define NO 255

#define GLOO_COLLECTIVES(CALL)                                                              \
	CALL(_ZN4gloo9allreduceERKNS_16AllreduceOptionsE, COLLECTIVE, 80, 88, NO, NO, 128)  \
	CALL(_ZN4gloo9broadcastERNS_16BroadcastOptionsE, COLLECTIVE, 32, 40, NO, 48, 52)    \
	CALL(_ZN4gloo6reduceERNS_13ReduceOptionsE, COLLECTIVE, 32, 40, NO, 48, 88)          \
	CALL(_ZN4gloo9allgatherERNS_16AllgatherOptionsE, COLLECTIVE, NO, 32, 16, NO, 40)    \
	CALL(_ZN4gloo6gatherERNS_13GatherOptionsE, COLLECTIVE, NO, 32, 16, 40, 44)          \
	CALL(_ZN4gloo7scatterERNS_14ScatterOptionsE, COLLECTIVE, NO, 48, 40, 56, 60)        \
	CALL(_ZN4gloo8alltoallERNS_15AlltoallOptionsE, COLLECTIVE, NO, 32, 16, NO, 40)      \
	CALL(_ZN4gloo7barrierERNS_14BarrierOptionsE, COLLECTIVE, NO, NO, NO, NO, 24)        \
	CALL(_ZN4gloo10allgathervERNS_17AllgathervOptionsE, COLLECTIVE, NO, NO, 16, NO, NO) \
	CALL(_ZN4gloo7gathervERNS_14GathervOptionsE, COLLECTIVE, NO, NO, 16, NO, NO)        \
	CALL(_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE, COLLECTIVE, NO, NO, 16, NO, NO)

/*
 * Sends and receives, which are PyTorch's: gloo has none that are not parts of collectives. All that is read of them are
 * arguments; `root` is which of them is the peer. Measured on PyTorch 1.13.1.
 */
#define GLOO_TRANSFERS(CALL)                                                                                                                                        \
	CALL(_ZN4c10d16ProcessGroupGlooC1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE, \
	     GROUP, NO, NO, NO, NO, NO)                                                                                                                             \
	CALL(_ZN4c10d16ProcessGroupGloo4sendERSt6vectorIN2at6TensorESaIS3_EEii, SEND, NO, NO, NO,                                                                   \
	     4, NO)                                                                                                                                                 \
	CALL(_ZN4c10d16ProcessGroupGloo4recvERSt6vectorIN2at6TensorESaIS3_EEii, RECEIVE, NO, NO,                                                                    \
	     NO, 4, NO)                                                                                                                                             \
	CALL(_ZN4c10d16ProcessGroupGloo13recvAnysourceERSt6vectorIN2at6TensorESaIS3_EEi, RECEIVE,                                                                   \
	     NO, NO, NO, NO, NO)                                                                                                                                    \
	CALL(_ZN4c10d16ProcessGroupGloo8SendWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE,                                                                 \
	     TRANSFER_WAIT, NO, NO, NO, NO, NO)                                                                                                                     \
	CALL(_ZN4c10d16ProcessGroupGloo8RecvWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE,                                                                 \
	     TRANSFER_WAIT, NO, NO, NO, NO, NO)

/*
 * Of PyTorch around them. The name of record_function_enter_new is a std::string, of the old ABI or the new one, and its
 * second argument a c10::optional or a std::optional; the first word of each string leads to its text.
 */
#define TORCH_CALLS(CALL)                                                                                                                         \
	CALL(_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_,                                    \
	     BACKWARD, NO, NO, NO, NO, NO)                                                                                                        \
	CALL(_ZN4c10d7Reducer17finalize_backwardEv, WAIT, NO, NO, NO, NO, NO)                                                                     \
	CALL(_ZN4c10d4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE, WAIT, NO, NO, NO,                                                   \
	     NO, NO)                                                                                                                              \
	CALL(_ZN4c10d12ProcessGroup4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE, WAIT,                                                 \
	     NO, NO, NO, NO, NO)                                                                                                                  \
	CALL(_ZN5torch8autograd8profiler25record_function_enter_newERKSsRKN3c108optionalISsEE,                                                    \
	     RECORDED, NO, NO, NO, NO, NO)                                                                                                        \
	CALL(_ZN5torch8autograd8profiler25record_function_enter_newERKSsRKSt8optionalISsE,                                                        \
	     RECORDED, NO, NO, NO, NO, NO)                                                                                                        \
	CALL(_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKN3c108optionalIS7_EE, \
	     RECORDED, NO, NO, NO, NO, NO)                                                                                                        \
	CALL(_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E,     \
	     RECORDED, NO, NO, NO, NO, NO)

#define GLOO_CALLS(CALL) GLOO_COLLECTIVES(CALL) TORCH_CALLS(CALL) GLOO_TRANSFERS(CALL)

#endif
