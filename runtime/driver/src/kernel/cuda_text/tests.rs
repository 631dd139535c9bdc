use super::difference_in_cuda;
use crate::kernel::AccessMode::{Read, ReadWrite, Write};
use crate::kernel::{Compared, Kernel, Param, Source, Twin};
use half::f16;

static COMPARED: Compared = Compared::not_yet();

const fn kernel(name: &'static str, params: &'static [Param]) -> Kernel {
    let (source, library) = (Source::None, None);
    let (twin, tolerance): (Option<Twin>, _) = (Some(|_| ()), 0.0);
    Kernel { name, params, in_place: false, source, library, twin, tolerance, compared: &COMPARED }
}

static SAXPY: Kernel = kernel(
    "saxpy",
    &[
        Param::scalar::<u32>("n"),
        Param::scalar::<f32>("a"),
        Param::slice::<f32>("x", Read),
        Param::slice::<f32>("y", Write),
    ],
);
static STORE: Kernel = kernel(
    "store",
    &[
        Param::scalar::<u8>("a"),
        Param::scalar::<f16>("b"),
        Param::scalar::<i64>("c"),
        Param::scalar::<f64>("d"),
        Param::slice::<u32>("y", ReadWrite),
    ],
);
static NOTHING: Kernel = kernel("nothing", &[]);

/// Texts that NVRTC accepts for `saxpy`, each of which could be misread.
const SAXPY_TEXTS: [&str; 32] = [
    "extern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "extern\"C\" __global__ void saxpy(unsigned int n,float a,const float*x,float*y){}",
    "extern \"C\" __global__ void __launch_bounds__(256, 2) saxpy(unsigned, float, const float*, float y[]) {}",
    "extern \"C\" __global__ __launch_bounds__(256) void\nsaxpy (\n    const unsigned n, // how many, float\n    float /* , */ a,\n    const float* __restrict__ x,\n    float* __restrict__ const y\n) {}",
    // Text with other functions beside the kernel.
    "__device__ float twice(float x) { return 2 * x; }\nextern \"C\" {\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) { y[0] = twice(x[0]); }\n}",
    "extern \"C\" __global__ void other(float* y) {}\nextern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "extern \"C\" __global__ void saxpy(unsigned, float, const float*, float*);\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "namespace detail { __global__ void saxpy(int n) {} }\nextern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "namespace detail { __device__ void saxpy(int n) {} }\nextern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y) { detail::saxpy(n); }",
    // Conditions.
    "#ifdef __cplusplus\nextern \"C\"\n#endif\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "#ifdef __cplusplus\nextern \"C\" {\n#endif\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}\n#ifdef __cplusplus\n}\n#endif",
    "#if 0\nextern \"C\" __global__ void saxpy(float* y)\n#else\nextern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y)\n#endif\n{}",
    "extern \"C\" __global__ void saxpy(unsigned n,\n#if 0\n    int b,\n#endif\n    float a, const float* x, float* y) {}",
    "#define saxpy saxpy_of_something\n#undef saxpy\nextern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    // Macros.
    "#define KERNEL extern \"C\" __global__ void\nKERNEL saxpy(unsigned n, float a, const float* x, float* y) {}",
    "#define KERNEL(name, ...) extern \"C\" __global__ void name(__VA_ARGS__)\nKERNEL(saxpy, unsigned n, float a, const float* x, float* y) {}",
    "#define ARRAYS const float* x, \\\n    float* y\nextern \"C\" __global__ void saxpy(unsigned n, float a, ARRAYS) {}",
    "#define SCALARS unsigned n, float a\nextern \"C\" __global__ void saxpy(SCALARS, const float* x, float* y) {}",
    "#define NAME saxpy\nextern \"C\" __global__ void NAME(unsigned n, float a, const float* x, float* y) {}",
    "#define PASTE(a, b) a ## b\nextern \"C\" __global__ void PASTE(sax, py)(unsigned n, float a, const float* x, float* y) {}",
    "#define BEGIN extern \"C\" {\n#define END }\nBEGIN\ntypedef int unused;\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}\nEND",
    "#define double float\nextern \"C\" __global__ void saxpy(unsigned n, double a, const float* x, float* y) {}",
    // Named types, and other ways to declare.
    "typedef unsigned count; using real = float; typedef real* reals;\nextern \"C\" __global__ void saxpy(count n, real a, const real* x, reals y) {}",
    "typedef float half;\nextern \"C\" __global__ void saxpy(unsigned n, float a, const half* x, half* y) {}",
    "using uint8_t = float;\nextern \"C\" __global__ void saxpy(unsigned n, float a, const uint8_t* x, uint8_t* y) {}",
    "struct int8_t { float x; };\nextern \"C\" __global__ void saxpy(unsigned n, float a, const int8_t* x, struct int8_t* y) {}",
    "extern \"C\" __global__ void saxpy(unsigned n, float a, const void* x, float4* y) {}",
    "extern \"C\" __global__ void saxpy(unsigned n, float a, const unsigned char* x, int* y) {}",
    "#include <cuda_fp16.h>\n#include <cooperative_groups/reduce.h>\nextern \"C\" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "struct floats { float* at; };\nextern \"C\" __global__ void saxpy(unsigned n, float a, floats x, struct floats y) {}",
    "typedef void head(unsigned, float, const float*, float*);\nextern \"C\" __global__ head saxpy;\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
    "extern \"C\" __global__ void sax\\\npy(unsigned n, float a, const float* x, float* y) { const char* s = \"saxpy(}\\\"\"; char c = '\"'; int i = 1'000; }",
];

#[test]
fn nothing_is_said_against_text_that_fits() {
    for text in SAXPY_TEXTS {
        assert_eq!(difference_in_cuda(&SAXPY, text), None, "{text}");
    }
    let text = "extern \"C\" __global__ void store(unsigned char a, unsigned short b, long long int c, double d, unsigned* y) {}";
    assert_eq!(difference_in_cuda(&STORE, text), None);
    let text = "extern \"C\" __global__ void store(bool a, __half b, long c, const double d, unsigned* y) {}";
    assert_eq!(difference_in_cuda(&STORE, text), None);
    for text in ["extern \"C\" __global__ void nothing() {}", "extern \"C\" __global__ void nothing(void) {}"]
    {
        assert_eq!(difference_in_cuda(&NOTHING, text), None);
    }
}

#[test]
fn text_that_is_not_read_is_left_to_the_compiler() {
    for text in [
        "#include \"saxpy.cuh\"",
        "#include \"cuda_fp16.h\"",
        "#include <cuda_fp16.h>\n#include <saxpy.cuh>",
        "#  include_next <saxpy.cuh>",
        "extern \"C\" __attribute__((global)) void saxpy(float* y) {}",
        "extern \"C\" __global__ void saxpy(unsigned n, float a = {1}) {}",
        "extern \"C\" __global__ void saxpy(float (&y)[4]) {}",
        "extern \"C\" __global__ void (saxpy)(float* y) {}",
        "extern \"C\" __global__ void saxpy([[maybe_unused]] float* y) {}",
        "extern \"C\" __global__ void other(float* y) asm(\"saxpy\");",
        "const char* s = R\"(\n)\";",
        "/* saxpy",
        "\"saxpy",
        "extern \"C\" __global__ void saxpy(float* y",
    ] {
        assert_eq!(difference_in_cuda(&SAXPY, text), None, "{text}");
    }
}

#[test]
fn text_without_such_a_kernel_is_objected_to() {
    for (text, difference) in [
        ("", "its CUDA C++ has no kernel saxpy; give both the same name"),
        ("// saxpy\n/* saxpy */", "its CUDA C++ has no kernel saxpy; give both the same name"),
        (
            "__device__ int one() { return 1; }\nextern \"C\" __global__ void __launch_bounds__(256) saxpi(float* y) {}\n\
             extern \"C\" __global__ void saxpy2(float* y) { printf(\"saxpy\"); }",
            "its CUDA C++ has no kernel saxpy, only saxpi, saxpy2; give both the same name",
        ),
        (
            "__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
            "saxpy is not extern \"C\" in its CUDA C++, so its name changes when it is compiled; \
             declare it extern \"C\"",
        ),
        (
            "template <typename T> __global__ void saxpy(unsigned n, T a, const T* x, T* y) {}",
            "saxpy is not extern \"C\" in its CUDA C++, so its name changes when it is compiled; \
             declare it extern \"C\"",
        ),
        (
            "extern \"C\" __global__ void other() {}\n__global__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
            "saxpy is not extern \"C\" in its CUDA C++, so its name changes when it is compiled; \
             declare it extern \"C\"",
        ),
        (
            "extern \"C\" __device__ void saxpy(unsigned n, float a, const float* x, float* y) {}",
            "saxpy is not __global__ in its CUDA C++; declare it __global__",
        ),
    ] {
        assert_eq!(difference_in_cuda(&SAXPY, text).as_deref(), Some(difference), "{text}");
    }
}

#[test]
fn other_parameters_are_objected_to() {
    for (params, difference) in [
        ("", "it has 4 parameters in the declaration and 0 in its CUDA C++"),
        ("void", "it has 4 parameters in the declaration and 0 in its CUDA C++"),
        ("float a, const float* x, float* y", "it has 4 parameters in the declaration and 3 in its CUDA C++"),
        (
            "unsigned n, float a, const float* x, float* y, int incy",
            "it has 4 parameters in the declaration and 5 in its CUDA C++",
        ),
        (
            "unsigned n, const  float*\n x, float a, float* y",
            "parameter 2 of 4 is \"a: f32\" in the declaration and \"const float* x\" in its CUDA C++",
        ),
        (
            "unsigned n, float a, float x, float* y",
            "parameter 3 of 4 is \"x: &[f32]\" in the declaration and \"float x\" in its CUDA C++",
        ),
        (
            "unsigned n, float a, const float* x, unsigned long long y",
            "parameter 4 of 4 is \"write y: &mut [f32]\" in the declaration and \"unsigned long long y\" in its CUDA C++",
        ),
        (
            "unsigned n, float a, const float* x, double *y",
            "parameter 4 of 4 is \"write y: &mut [f32]\" in the declaration and \"double *y\" in its CUDA C++",
        ),
        (
            "unsigned n, float a, const short* __restrict__ x, float* y",
            "parameter 3 of 4 is \"x: &[f32]\" in the declaration and \"const short* __restrict__ x\" in its CUDA C++",
        ),
        (
            "unsigned long long n, float a, const float* x, float* y",
            "parameter 1 of 4 is \"n: u32\" in the declaration and \"unsigned long long n\" in its CUDA C++",
        ),
        (
            "unsigned n, double a, const float* x, float* y",
            "parameter 2 of 4 is \"a: f32\" in the declaration and \"double a\" in its CUDA C++",
        ),
    ] {
        let text = format!("extern \"C\" __global__ void saxpy({params}) {{ int local; }}");
        let expected = format!("{difference}; make the two agree");
        assert_eq!(difference_in_cuda(&SAXPY, &text), Some(expected), "{params}");
    }
    // Neither of the two declarations fits.
    let text = "#if 0\nextern \"C\" __global__ void saxpy(float* y)\n#else\nextern \"C\" __global__ void saxpy(int n)\n#endif\n{}";
    assert!(difference_in_cuda(&SAXPY, text).is_some_and(|difference| difference.contains("and 1 in its")));
}
