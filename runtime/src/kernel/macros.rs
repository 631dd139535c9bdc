//! The `kernel!` macro.
//!
//! `kernel!` splits off one declaration after the other and passes each to `__kernel!`. That macro
//! reads it in steps, each with its own tag. `@where` and `@condition` find the body, `@body` reads
//! its keys in any order, and `@params` expands each parameter for every place where it occurs.
//! `@emit` writes the function and `@descriptor` the descriptor. An arm that starts no further step
//! reports the missing part.

/// Declares kernels: each becomes a function that makes a
/// [`KernelCall`](crate::kernel::KernelCall).
///
/// ```text
/// #[attributes] vis [in_place] unsafe fn name(parameter, …) [where condition, …] {
///     [descriptor: NAME,]
///     [cuda: text, | ptx: text, | ptx: [text, …], | ptx_from_sm_60: text, | image: bytes,]
///     [library: &LIBRARY,]
///     [tolerance: number,]
///     [cpu: |name, …| body,]
/// }
/// ```
///
/// The keys of the body may be in any order. The `recursion_limit` of a crate allows at least 16
/// kernels with short conditions in one `kernel!`, and 40 without.
///
/// | parameter | the call takes | the kernel | the twin gets |
/// |---|---|---|---|
/// | `a: T` | `T`, an [`Element`](crate::Element) | gets the value | `T` |
/// | `x: &[T]` | `impl IntoOperand<T>` | reads it | `&[T]` |
/// | `x: &mut [T]` | the same | reads and writes it | `&mut [T]` |
/// | `write x: &mut [T]` | the same | overwrites all of it | `&mut [T]` |
///
/// - `where` has one condition or several, separated by commas, over the scalars and the operands'
///   `len()` and `is_empty()`. They are evaluated on the host for every call. If one does not hold,
///   the launch is refused, and nothing runs. A condition with braces must be in parentheses:
///   `where ({ … })`. A `write` parameter promises that the whole operand is overwritten, so a
///   condition should fix its length.
/// - `cuda`, `ptx` and `image` are the device code: text of CUDA C++, one or several texts of PTX,
///   or the bytes of a cubin or a fatbin. The device code defines an `extern "C"` kernel with this
///   name, which takes the scalars by value and the slices as pointers, without their lengths.
///   NVRTC compiles CUDA C++ at the first launch on a GPU; kernels with the same text share one
///   module. Several texts of PTX are for several targets, such as `sm_60` and `sm_80`: each device
///   loads the newest that it supports. Without device code, the kernel runs on CPU devices
///   only.
/// - `ptx_from_sm_60` is a text of PTX for `sm_70` or a newer target, without anything that `sm_60`
///   lacks. A GPU of Pascal loads it with `sm_60` in place of its target, and all other devices
///   load it as it is. Text under `ptx` is always loaded as it is, so Pascal refuses text for
///   `sm_70`.
/// - The first launch of a kernel on any device, the CPU device too, compares the device code with
///   the declaration, and is refused if they differ. For PTX it compares the entry's name and the
///   number and sizes of its parameters. For CUDA C++ it compares the kernel's name, the number of
///   its parameters, which of them are pointers, the sizes of builtin types, and the types behind
///   pointers, unless a macro or an include of other headers than CUDA's prevents it.
///   `testing::check_cuda` also compiles the text. Images are not compared.
/// - `library` is a `static` [`Library`](crate::kernel::Library). At each launch, a CUDA device
///   asks the library whether it does the work in place of the device code. The library has to keep
///   the promise that `unsafe` makes for the device code.
/// - `cpu` is the twin, the kernel's form for CPU devices: a closure or function of all parameters,
///   called once per launch. A panic in it is a fault: the CPU device accepts no more work, as a
///   GPU does after an illegal address. A kernel needs a twin or device code, or both.
/// - Without a twin, a CPU device runs the kernel's PTX: the text with the newest target, each
///   thread of each block. It needs the feature `ptx` for that, and refuses the launch without it.
///   NVRTC compiles CUDA C++ for it, if NVRTC is installed. An access outside
///   of the operands, or a write to one that is only read, is a fault, which names the kernel, its
///   thread, the line and the element. What the kernel prints goes to standard output. A text with
///   an instruction that CPU devices do not support is refused at the first launch, and so is an
///   image.
/// - `tolerance` is the largest difference between the results of the twin and of the device code,
///   as a fraction of the largest value of the operand. Without it, results have the same bits,
///   apart from those of NaN. [`KernelForm::Both`](crate::KernelForm::Both) runs and compares the
///   two.
/// - `in_place` kernels accept a written operand that is the same memory as another operand. The
///   slices of their twin are `&[Cell<T>]`, because they may be the same memory.
/// - `descriptor` names a `static` [`Kernel`](crate::kernel::Kernel) of the same visibility, for
///   functions that take a kernel: `testing::check_cuda`, `Device::load`,
///   `Device::suggest_config`. Without it,
///   [`KernelCall::kernel`](crate::kernel::KernelCall::kernel) still returns the kernel of a call.
///
/// The function has the declared name, visibility and attributes, and is safe to call.
///
/// | Rust | CUDA C++ | PTX |
/// |---|---|---|
/// | `u8`, `i8` | `unsigned char`, `signed char` | `.u8`, `.s8` |
/// | `u16`, `i16` | `unsigned short`, `short` | `.u16`, `.s16` |
/// | `u32`, `i32`, `f32` | `unsigned`, `int`, `float` | `.u32`, `.s32`, `.f32` |
/// | `u64`, `i64`, `f64` | `unsigned long long`, `long long`, `double` | `.u64`, `.s64`, `.f64` |
/// | `half::f16`, `half::bf16` | `__half`, `__nv_bfloat16` | `.b16` |
/// | a slice | a pointer | `.u64` |
///
/// # Safety
/// `unsafe` promises that the device code touches only its operands, within their lengths, and only
/// as their parameters say. The promise has to hold for every launch configuration, and for all
/// scalars and lengths that pass the `where`. Since calling the function is safe, do not declare
/// device code that cannot keep this promise. The twin is safe code and needs no promise. CPU
/// devices check each access of PTX, unless
/// [`without_kernel_bounds`](crate::RuntimeBuilder::without_kernel_bounds) switches that off.
///
/// # Examples
/// ```
/// warpline::kernel! {
///     /// y ← a·x + y for `n` elements.
///     pub unsafe fn saxpy(n: u32, a: f32, x: &[f32], y: &mut [f32])
///     where n as usize == x.len() && n as usize == y.len()
///     {
///         descriptor: SAXPY,
///         cpu: |n, a, x, y| for i in 0..n as usize { y[i] += a * x[i] },
///     }
///
///     /// y ← −y.
///     pub unsafe fn negate(y: &mut [f32]) {
///         cpu: |y| y.iter_mut().for_each(|y| *y = -*y),
///     }
/// }
/// assert_eq!(SAXPY.params.len(), 4);
/// ```
///
/// An operand of another element type does not compile:
/// ```compile_fail,E0277
/// # warpline::kernel! {
/// #     pub unsafe fn negate(y: &mut [f32]) { cpu: |y| y.iter_mut().for_each(|y| *y = -*y) }
/// # }
/// use warpline::kernel::Elements;
/// fn negated(y: Elements<'_, f64>) {
///     let _ = negate(y);
/// }
/// ```
#[macro_export]
macro_rules! kernel {
    () => {};
    ($(#[$attr:meta])* $vis:vis in_place unsafe fn $name:ident ($($params:tt)*) $($rest:tt)*) => {
        $crate::__kernel! { @where ([$(#[$attr])*] [$vis] in_place $name ($($params)*)) $($rest)* }
    };
    ($(#[$attr:meta])* $vis:vis unsafe fn $name:ident ($($params:tt)*) $($rest:tt)*) => {
        $crate::__kernel! { @where ([$(#[$attr])*] [$vis] disjoint $name ($($params)*)) $($rest)* }
    };
    // Continues as if `unsafe` was there, so that there is one error and not another one for each
    // use.
    ($(#[$attr:meta])* $vis:vis in_place fn $name:ident ($($params:tt)*) $($rest:tt)*) => {
        compile_error!(concat!(
            "kernel `", stringify!($name), "` is not declared `unsafe`, which promises that its device code touches only its \
             operands; write `in_place unsafe fn ", stringify!($name), "`"
        ));
        $crate::__kernel! { @where ([$(#[$attr])*] [$vis] in_place $name ($($params)*)) $($rest)* }
    };
    ($(#[$attr:meta])* $vis:vis fn $name:ident ($($params:tt)*) $($rest:tt)*) => {
        compile_error!(concat!(
            "kernel `", stringify!($name), "` is not declared `unsafe`, which promises that its device code touches only its \
             operands; write `unsafe fn ", stringify!($name), "`"
        ));
        $crate::__kernel! { @where ([$(#[$attr])*] [$vis] disjoint $name ($($params)*)) $($rest)* }
    };
    ($($other:tt)+) => {
        compile_error!(concat!(
            "a kernel is declared as `[in_place] unsafe fn name(parameters) [where conditions] { … }`, not as `",
            stringify!($($other)+),
            "`"
        ));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel {
    (@where $head:tt where $($rest:tt)+) => {
        $crate::__kernel! { @condition $head [] $($rest)+ }
    };
    (@where $head:tt { $($body:tt)* } $($rest:tt)*) => {
        $crate::__kernel! { @body $head [] [] [] [] [] [] { $($body)* } }
        $crate::kernel! { $($rest)* }
    };
    (@where ($attrs:tt $vis:tt $mode:ident $name:ident $params:tt) $($other:tt)*) => {
        compile_error!(concat!(
            "the parameters of kernel `", stringify!($name), "` must be followed by `where` or by its body, not by `",
            stringify!($($other)*), "`; write `{ cpu: … }` or `{ ptx: … }` with its code"
        ));
    };

    // The condition ends at the first braces. Three tokens a step keep long conditions far from the
    // recursion limit.
    (@condition $head:tt [$($condition:tt)*] { $($body:tt)* } $($rest:tt)*) => {
        $crate::__kernel! { @body $head [$($condition)*] [] [] [] [] [] { $($body)* } }
        $crate::kernel! { $($rest)* }
    };
    (@condition $head:tt [$($condition:tt)*] $a:tt { $($body:tt)* } $($rest:tt)*) => {
        $crate::__kernel! { @body $head [$($condition)* $a] [] [] [] [] [] { $($body)* } }
        $crate::kernel! { $($rest)* }
    };
    (@condition $head:tt [$($condition:tt)*] $a:tt $b:tt { $($body:tt)* } $($rest:tt)*) => {
        $crate::__kernel! { @body $head [$($condition)* $a $b] [] [] [] [] [] { $($body)* } }
        $crate::kernel! { $($rest)* }
    };
    (@condition $head:tt [$($condition:tt)*] $a:tt $b:tt $c:tt $($rest:tt)+) => {
        $crate::__kernel! { @condition $head [$($condition)* $a $b $c] $($rest)+ }
    };
    (@condition ($attrs:tt $vis:tt $mode:ident $name:ident $params:tt) $($other:tt)*) => {
        compile_error!(concat!(
            "kernel `", stringify!($name), "` has no body behind its `where`; write `{ cpu: … }` or `{ ptx: … }` with its code"
        ));
    };

    // Each key fills an empty slot: descriptor, device code, library, tolerance, CPU form.
    (@body $head:tt $condition:tt [] $source:tt $library:tt $tolerance:tt $cpu:tt
        { descriptor: $descriptor:ident $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! { @body $head $condition [$descriptor] $source $library $tolerance $cpu { $($($rest)*)? } }
    };
    (@body $head:tt $condition:tt $descriptor:tt [] $library:tt $tolerance:tt $cpu:tt
        { cuda: $text:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor [$crate::kernel::Source::Cuda($text)] $library $tolerance $cpu { $($($rest)*)? }
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt [] $library:tt $tolerance:tt $cpu:tt
        { ptx: [$($text:expr),+ $(,)?] $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor [$crate::kernel::Source::Ptx { texts: &[$($text),+], from_sm_60: false }]
            $library $tolerance $cpu { $($($rest)*)? }
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt [] $library:tt $tolerance:tt $cpu:tt
        { ptx: $text:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor [$crate::kernel::Source::Ptx { texts: &[$text], from_sm_60: false }]
            $library $tolerance $cpu { $($($rest)*)? }
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt [] $library:tt $tolerance:tt $cpu:tt
        { ptx_from_sm_60: $text:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor [$crate::kernel::Source::Ptx { texts: &[$text], from_sm_60: true }]
            $library $tolerance $cpu { $($($rest)*)? }
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt [] $library:tt $tolerance:tt $cpu:tt
        { image: $bytes:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor [$crate::kernel::Source::Image($bytes)] $library $tolerance $cpu { $($($rest)*)? }
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt $source:tt [] $tolerance:tt $cpu:tt
        { library: $library:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor $source [::core::option::Option::Some($library)] $tolerance $cpu { $($($rest)*)? }
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt $source:tt $library:tt $tolerance:tt []
        { cpu: $cpu:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! { @body $head $condition $descriptor $source $library $tolerance [$cpu] { $($($rest)*)? } }
    };
    (@body $head:tt $condition:tt $descriptor:tt $source:tt $library:tt [] $cpu:tt
        { tolerance: $tolerance:expr $(, $($rest:tt)*)? }
    ) => {
        $crate::__kernel! {
            @body $head $condition $descriptor $source $library [$tolerance] $cpu { $($($rest)*)? }
        }
    };
    // Missing keys have their defaults. Without code, there is nothing to run.
    (@body ($attrs:tt $vis:tt $mode:ident $name:ident $params:tt) $condition:tt
        $descriptor:tt [] $library:tt $tolerance:tt [] {}
    ) => {
        compile_error!(concat!(
            "kernel `", stringify!($name), "` has no code; write `cpu: |…| …`, a closure or function of all parameters, or \
             device code: `ptx: text`, `cuda: text` or `image: bytes`"
        ));
    };
    (@body $head:tt $condition:tt $descriptor:tt [] $library:tt $tolerance:tt $cpu:tt {}) => {
        $crate::__kernel! {
            @body $head $condition $descriptor [$crate::kernel::Source::None] $library $tolerance $cpu {}
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt $source:tt [] $tolerance:tt $cpu:tt {}) => {
        $crate::__kernel! {
            @body $head $condition $descriptor $source [::core::option::Option::None] $tolerance $cpu {}
        }
    };
    (@body $head:tt $condition:tt $descriptor:tt $source:tt $library:tt [] $cpu:tt {}) => {
        $crate::__kernel! { @body $head $condition $descriptor $source $library [0.0] $cpu {} }
    };
    (@body $head:tt $condition:tt
        $descriptor:tt [$source:expr] [$library:expr] [$tolerance:expr] $cpu:tt {}
    ) => {
        $crate::__kernel! { @open $head $condition $descriptor [$source, $library, $tolerance] $cpu }
    };
    (@body ($attrs:tt $vis:tt $mode:ident $name:ident $params:tt) $condition:tt
        $descriptor:tt $source:tt $library:tt $tolerance:tt $cpu:tt { $($other:tt)+ }
    ) => {
        compile_error!(concat!(
            "kernel `", stringify!($name), "` cannot have `", stringify!($($other)+), "`; write each of `descriptor: NAME`, \
             `cuda: text`, `ptx: text`, `ptx_from_sm_60: text` or `image: bytes`, `library: &LIBRARY`, `tolerance: 1e-6` and \
             `cpu: |…| …` once at most, with commas between"
        ));
    };

    (@open ($attrs:tt $vis:tt $mode:ident $name:ident ($($params:tt)*))
        $condition:tt $descriptor:tt $source:tt $cpu:tt
    ) => {
        $crate::__kernel! {
            @params 'a $mode ($attrs $vis $name $condition $descriptor $source $cpu)
            [[] [] [] [] [] [] [] []]; $($params)*
        }
    };

    // Each parameter adds an entry to lists: of the signature, the names, the twin's types, the
    // descriptor's parameters, the arguments, the values, and the scalars or the slices.
    (@params $a:lifetime $mode:ident $head:tt [$($lists:tt)*];) => {
        $crate::__kernel! { @emit $a $mode $head $($lists)* }
    };
    (@params $a:lifetime $mode:ident $head:tt $lists:tt;
        write $x:ident: &mut [$element:ty] $(, $($rest:tt)*)?
    ) => {
        $crate::__kernel! { @slice $a $mode $head Write unique $lists; $x $element; $($($rest)*)? }
    };
    (@params $a:lifetime $mode:ident $head:tt $lists:tt;
        $x:ident: &mut [$element:ty] $(, $($rest:tt)*)?
    ) => {
        $crate::__kernel! { @slice $a $mode $head ReadWrite unique $lists; $x $element; $($($rest)*)? }
    };
    (@params $a:lifetime $mode:ident $head:tt $lists:tt; $x:ident: &[$element:ty] $(, $($rest:tt)*)?) => {
        $crate::__kernel! { @slice $a $mode $head Read shared $lists; $x $element; $($($rest)*)? }
    };
    (@params $a:lifetime $mode:ident $head:tt
        [
            [$($signature:tt)*] [$($names:tt)*] [$($twin:tt)*] [$($params:tt)*] [$($args:tt)*]
            [$($values:tt)*] [$($scalars:tt)*] $slices:tt
        ];
        $x:ident: $element:ty $(, $($rest:tt)*)?
    ) => {
        $crate::__kernel! {
            @params $a $mode $head
            [
                [$($signature)* $x: $element,]
                [$($names)* $x]
                [$($twin)* $element,]
                [$($params)* $crate::kernel::Param::scalar::<$element>(stringify!($x)),]
                [$($args)* $crate::kernel::Arg::scalar::<$element>($x),]
                [$($values)* (stringify!($x), &$x),]
                [$($scalars)* ($x $element)]
                $slices
            ]; $($($rest)*)?
        }
    };
    (@params $a:lifetime $mode:ident $head:tt $lists:tt; $($other:tt)+) => {
        compile_error!(concat!(
            "a kernel's parameter is `x: T`, `x: &[T]`, `x: &mut [T]` or `write x: &mut [T]`, not `",
            stringify!($($other)+),
            "`"
        ));
    };

    (@slice $a:lifetime $mode:ident $head:tt $access:ident $unpack:ident
        [
            [$($signature:tt)*] [$($names:tt)*] [$($twin:tt)*] [$($params:tt)*] [$($args:tt)*]
            [$($values:tt)*] $scalars:tt [$($slices:tt)*]
        ];
        $x:ident $element:ty; $($rest:tt)*
    ) => {
        $crate::__kernel! {
            @params $a $mode $head
            [
                [$($signature)* $x: impl $crate::kernel::IntoOperand<$a, $element>,]
                [$($names)* $x]
                [$($twin)* $crate::kernel::__private::$mode::$access<'_, $element>,]
                [$($params)* $crate::kernel::Param::slice::<$element>(
                    stringify!($x), $crate::kernel::AccessMode::$access
                ),]
                [$($args)* $crate::kernel::__private::slice_arg(&$x),]
                [$($values)* (concat!(stringify!($x), ".len()"), &$x.len()),]
                $scalars
                [$($slices)* ($x $element, $access $unpack)]
            ]; $($rest)*
        }
    };

    (@emit $a:lifetime $mode:ident
        ([$(#[$attr:meta])*] [$vis:vis] $name:ident [$($condition:expr),* $(,)?] $descriptor:tt $source:tt $cpu:tt)
        [$($signature:tt)*] $names:tt $twin:tt $params:tt [$($args:tt)*] $values:tt
        $scalars:tt [$(($slice:ident $element:ty, $access:ident $unpack:ident))*]
    ) => {
        $(#[$attr])*
        #[inline]
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$a>($($signature)*) -> $crate::kernel::KernelCall<$a> {
            let kernel: &'static $crate::kernel::Kernel = $crate::__kernel!(
                @place $descriptor $mode $name $source $cpu $names $twin $params $scalars
                [$(($slice $element, $unpack))*]
            );
            $(let $slice = $crate::kernel::IntoOperand::into_operand($slice);)*
            let operands = [
                $($crate::kernel::__private::operand($slice, $crate::kernel::AccessMode::$access)),*
            ];
            #[allow(unused_mut)]
            let mut failed = $crate::kernel::__private::strided_operand(kernel, operands);
            $(
                let holds: bool = failed.is_some() || $condition;
                if !holds {
                    failed = Some($crate::kernel::__private::does_not_hold(
                        kernel, stringify!($condition), &$values
                    ));
                }
            )*
            // SAFETY: the arguments and operands are those of the descriptor, which lists the same
            // parameters in order.
            unsafe { $crate::kernel::__private::call(kernel, [$($args)*], operands, failed) }
        }

        $crate::__kernel! {
            @publish $descriptor [$vis] $mode $name $source $cpu $names $twin $params $scalars
            [$(($slice $element, $unpack))*]
        }
    };

    // A descriptor without a name is inside the function, one with a name beside it.
    (@place [] $($kernel:tt)*) => {{
        static __KERNEL: $crate::kernel::Kernel = $crate::__kernel!(@descriptor $($kernel)*);
        &__KERNEL
    }};
    (@place [$descriptor:ident] $($kernel:tt)*) => { &$descriptor };
    (@publish [] $($kernel:tt)*) => {};
    (@publish [$descriptor:ident] [$vis:vis] $mode:ident $name:ident $($kernel:tt)*) => {
        #[doc = concat!("The descriptor of [`", stringify!($name), "`](fn@", stringify!($name), ").")]
        $vis static $descriptor: $crate::kernel::Kernel = $crate::__kernel!(@descriptor $mode $name $($kernel)*);
    };

    (@descriptor $mode:ident $name:ident [$source:expr, $library:expr, $tolerance:expr] $cpu:tt
        $names:tt $twin:tt [$($params:tt)*] $scalars:tt $slices:tt
    ) => {{
        static __COMPARED: $crate::kernel::Compared = $crate::kernel::Compared::not_yet();
        $crate::kernel::Kernel {
            name: stringify!($name),
            params: &[$($params)*],
            in_place: $crate::kernel::__private::$mode::IN_PLACE,
            source: $source,
            library: $library,
            twin: $crate::__kernel!(@twin $mode $name $cpu $names $twin $scalars $slices),
            tolerance: $tolerance,
            compared: &__COMPARED,
        }
    }};

    (@twin $mode:ident $name:ident [] $names:tt $twin:tt $scalars:tt $slices:tt) => {
        ::core::option::Option::None
    };
    (@twin $mode:ident $name:ident [$cpu:expr] [$($names:ident)*] [$($twin:tt)*]
        [$(($scalar:ident $scalar_type:ty))*] [$(($slice:ident $element:ty, $unpack:ident))*]
    ) => {{
        unsafe fn __twin(args: &[$crate::kernel::Arg]) {
            let [$($names),*] = args else {
                $crate::kernel::__private::wrong_arguments(stringify!($name), args.len())
            };
            $(let $scalar = $crate::kernel::Arg::to_scalar::<$scalar_type>($scalar);)*
            $(
                // SAFETY: a twin's caller vouches that each slice argument is valid for its length
                // and its access while the twin runs, and apart from the others where the kernel is
                // not in place.
                let $slice = unsafe { $crate::kernel::__private::$mode::$unpack::<$element>($slice) };
            )*
            __safe_twin()($($names),*)
        }
        // Not inside the function above, where the user's code could do unsafe things without an
        // `unsafe` of its own.
        #[inline(always)]
        fn __safe_twin() -> fn($($twin)*) {
            $cpu
        }
        ::core::option::Option::Some(__twin as $crate::kernel::Twin)
    }};
}

/// Declarations that do not compile, each because one part is missing or doubled.
///
/// ```compile_fail
/// warpline::kernel! { fn negate(y: &mut [f32]) { cpu: |y| y[0] = -y[0] } }
/// ```
///
/// ```compile_fail
/// warpline::kernel! { in_place fn negate(y: &mut [f32]) { cpu: |y| y[0].set(-y[0].get()) }
/// }
/// ```
///
/// ```compile_fail
/// warpline::kernel! { unsafe fn negate(y: &mut [f32]) { descriptor: NEGATE } }
/// ```
///
/// ```compile_fail
/// warpline::kernel! { unsafe fn negate(y: &mut [f32]) { cpu: |y| (), cuda: "", ptx: "" } }
/// ```
#[cfg(doctest)]
struct Refused;

#[doc(hidden)]
pub mod expansion;
#[cfg(test)]
mod tests;
