/* NumPy's own sin, cos, exp and log1p of float32, without Python: their last bits depend on NumPy's version and on the machine. */
#ifndef RELAYRL_NUMPY_FUNCTIONS_H
#define RELAYRL_NUMPY_FUNCTIONS_H

#include <stdint.h>

enum { NUMPY_SIN, NUMPY_COS, NUMPY_EXP, NUMPY_LOG1P, NUM_FUNCTIONS };

/* Look for all of them; 0 where one is not what it should be. The GIL is held. */
int have_numpy_functions(void);

/* y = f(x) of `count` numbers side by side; y may be x. To be called by any thread once they are there. */
void apply_numpy(int function, const float *x, float *y, int64_t count);

#endif
