/*
 * otel_thread_ctx_v1 and the one function that writes it; compiled in every way in which a tracer may be: see
 * tests/kernel/test_thread_context.py. PADDING: how many bytes of other thread-locals stand beside it.
 */
#ifdef PADDING
__thread char padding[PADDING] = { 1 };
#endif

__thread const void *otel_thread_ctx_v1;

void publish(const void *record)
{
	__asm__ volatile("" : : : "memory");
	otel_thread_ctx_v1 = record;
	__asm__ volatile("" : : : "memory");
}
