/* What CUDA's headers need of this file of nvcc's, which is not in the runtime's package. */
#ifndef HOST_DEFINES_H
#define HOST_DEFINES_H

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __CUDA_HOSTDEVICE__
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)

#endif
