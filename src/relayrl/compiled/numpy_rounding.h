/* Steps of native environments round every operation as NumPy does: no product and sum become one instruction. Functions whose
 * last bits are NumPy's own (sin, cos, exp, log1p) are computed there and handed in. To be included before other functions.
 */
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
