// Metal's tensor operations for a C++ compiler: what the kernels use of it comes with metal_stdlib, which is
// read before Metal's keywords are macros.
#pragma once
#include <metal_stdlib>
