use crate::kernel::{
    AccessMode, Arg, Elements, IntoOperand, Kernel, KernelCall, Library, LibraryAnswer, LibraryProvider,
    NoHandle, ParamKind, Source,
};
use crate::order::ByteRange;
use crate::shared::Allocation;
use std::marker::PhantomData;
use std::sync::Arc;
use warpline_driver::{DevicePtr, Element, ErrorKind};

/// Host memory that stands in for device memory. Its view covers the bytes of `range`.
struct Memory<T> {
    allocation: Arc<Allocation>,
    range: ByteRange,
    _elements: PhantomData<T>,
}

impl<T: Element> Memory<T> {
    fn of(elements: &mut [T]) -> Self {
        let len_bytes = size_of_val(elements);
        Memory {
            allocation: Allocation::over_host(DevicePtr(elements.as_mut_ptr() as u64), len_bytes),
            range: ByteRange::contiguous(0, len_bytes as u64),
            _elements: PhantomData,
        }
    }

    fn viewed(self, range: ByteRange) -> Self {
        Memory { range, ..self }
    }
}

impl<'a, T: Element> IntoOperand<'a, T> for &'a Memory<T> {
    fn into_operand(self) -> Elements<'a, T> {
        Elements::new(&self.allocation, self.range)
    }
}

/// Runs the twin, as the CPU device would.
fn run(call: KernelCall<'_>) {
    let KernelCall { kernel, args, .. } = call;
    // SAFETY: a twin needs arguments that fit and slices valid for their access. The call's
    // operands are slices of the test, which outlive it. Operands that are the same memory belong
    // to a kernel in place.
    unsafe { (kernel.twin.unwrap())(&args) }
}

fn refusal(call: KernelCall<'_>) -> String {
    let error = call.failed.unwrap();
    assert_eq!(error.kind(), ErrorKind::Shape);
    error.to_string()
}

fn accesses(kernel: &Kernel) -> Vec<(&'static str, Option<AccessMode>)> {
    let access = |kind| match kind {
        ParamKind::Slice { access, .. } => Some(access),
        ParamKind::Scalar { .. } => None,
    };
    kernel.params.iter().map(|param| (param.name, access(param.kind))).collect()
}

static PROVIDER: LibraryProvider = LibraryProvider {
    workspace_bytes: |_, _| Ok(0),
    least_workspace_bytes: 0,
    make: |_| Err(NoHandle::NoMemory),
    destroy: |_| (),
};

static LIBRARY: Library = Library {
    provider: &PROVIDER,
    enqueue: |_| LibraryAnswer::Declined { because: "it is of this test", is_news: false },
    kernels: &[&SAXPY],
};

crate::kernel! {
    /// Computes y ← a·x + y for `n` elements.
    unsafe fn saxpy(n: u32, a: f32, x: &[f32], y: &mut [f32])
    where n as usize <= x.len() && n as usize <= y.len()
    {
        descriptor: SAXPY,
        cuda: "extern \"C\" __global__ void saxpy() {}",
        cpu: |n, a, x, y| for i in 0..n as usize { y[i] += a * x[i] },
    }

    unsafe fn reversed(write y: &mut [u8], x: &[u8],)
    where x.len() == y.len()
    {
        descriptor: REVERSED,
        ptx: include_str!("tests.rs"),
        library: &LIBRARY,
        cpu: |y, x| for (y, x) in y.iter_mut().zip(x.iter().rev()) { *y = *x },
    }

    in_place unsafe fn add_(y: &mut [f32], x: &[f32])
    where !y.is_empty(), x.len() == y.len(),
    {
        descriptor: ADD,
        cpu: |y, x| for (y, x) in y.iter().zip(x) { y.set(y.get() + x.get()) },
    }

    unsafe fn store(a: f64, b: u32, c: i64, d: u8, e: half::f16, write out: &mut [f64]) where out.len() == 5 {
        descriptor: STORE,
        cpu: store_twin,
    }

    unsafe fn nothing() { cpu: || {} }
}

fn store_twin(a: f64, b: u32, c: i64, d: u8, e: half::f16, out: &mut [f64]) {
    out.copy_from_slice(&[a, f64::from(b), c as f64, f64::from(d), e.to_f64()]);
}

mod elsewhere {
    crate::kernel! {
        /// Increments the first element.
        #[deprecated = "use a longer one"]
        pub(super) unsafe fn count(y: &mut [u32]) { descriptor: COUNT, cpu: |y| y[0] += 1 }

        unsafe fn long_condition(a: u32, b: u32, c: u32, d: u32, x: &[f32])
        where (a == 1 && b == 2 && c == 3 && d == 4)
            || (a == 2 && b == 3 && c == 4 && d == 5)
            || (a == 3 && b == 4 && c == 5 && d == 6)
            || (a == 4 && b == 5 && c == 6 && d == 7)
            || a + b + c + d + a + b + c + d + a + b + c + d + a + b + c + d + a + b + c + d + a + b + c + d == 0
            || a * b * c * d * a * b * c * d * a * b * c * d * a * b * c * d * a * b * c * d * a * b * c * d == 0
            || x.is_empty()
        {
            cpu: |_, _, _, _, _| {},
        }
    }

    #[test]
    fn a_private_kernel_is_seen_where_it_is_declared() {
        let memory = super::Memory::of(&mut [1.0f32]);
        assert!(long_condition(4, 5, 6, 7, &memory).refusal().is_none());
        assert!(long_condition(1, 1, 1, 1, &memory).refusal().is_some());
    }
}

#[test]
fn a_twin_gets_the_call_s_scalars_and_slices() {
    let (mut x, mut y) = ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]);
    run(saxpy(2, 2.0, &Memory::of(&mut x), &Memory::of(&mut y)));
    assert_eq!(y, [12.0, 24.0, 30.0]);

    let (mut x, mut y) = (*b"warp", [0; 4]);
    run(reversed(&Memory::of(&mut y), &Memory::of(&mut x)));
    assert_eq!(&y, b"praw");

    let mut out = [0.0; 5];
    run(store(-0.5, u32::MAX, i64::MIN, 255, half::f16::from_f32(1.5), &Memory::of(&mut out)));
    assert_eq!(out, [-0.5, 4294967295.0, i64::MIN as f64, 255.0, 1.5]);

    run(nothing());
}

crate::kernel! {
    unsafe fn backwards(write y: &mut [u8], x: &[u8])
    where x.len() == y.len()
    {
        cpu: |y, x| y.copy_from_slice(x),
        library: &LIBRARY,
        ptx: "backwards",
        descriptor: BACKWARDS,
    }

    unsafe fn middle_first(y: &mut [u8]) {
        image: &[7, 7],
        cpu: |y| y[0] = 1,
        descriptor: MIDDLE_FIRST
    }

    unsafe fn for_two_targets(y: &mut [u8]) {
        ptx: ["one", concat!("t", "wo"),],
        cpu: |y| y[0] = 1,
        descriptor: FOR_TWO_TARGETS,
    }

    unsafe fn for_pascal_too(y: &mut [u8]) {
        cpu: |y| y[0] = 1,
        ptx_from_sm_60: concat!("o", "ne"),
        descriptor: FOR_PASCAL_TOO,
    }

    unsafe fn cpu_before_cuda(y: &mut [u8]) { cpu: |y| y[0] += 1, cuda: "cpu_before_cuda" }
}

#[test]
fn the_keys_of_a_body_stand_in_any_order() {
    let (mut x, mut y) = (*b"warp", [0; 4]);
    run(backwards(&Memory::of(&mut y), &Memory::of(&mut x)));
    assert_eq!(&y, b"warp");
    assert!(matches!(BACKWARDS.source, Source::Ptx { texts: ["backwards"], from_sm_60: false }));
    assert!(BACKWARDS.library.is_some_and(|library| std::ptr::eq(library, &LIBRARY)));

    run(middle_first(&Memory::of(&mut y)));
    assert!(matches!(MIDDLE_FIRST.source, Source::Image([7, 7])));
    run(for_two_targets(&Memory::of(&mut y)));
    assert!(matches!(FOR_TWO_TARGETS.source, Source::Ptx { texts: ["one", "two"], from_sm_60: false }));
    run(for_pascal_too(&Memory::of(&mut y)));
    assert!(matches!(FOR_PASCAL_TOO.source, Source::Ptx { texts: ["one"], from_sm_60: true }));

    let of = Memory::of(&mut y);
    let call = cpu_before_cuda(&of);
    assert!(matches!(call.kernel().source, Source::Cuda("cpu_before_cuda")));
    run(call);
    assert_eq!(&y, b"\x02arp");
}

#[test]
fn an_operand_may_be_a_part_of_its_allocation() {
    let (mut x, mut y) = ([1.0, 2.0, 3.0, 4.0], [0.0; 4]);
    let (x, whole) = (Memory::of(&mut x).viewed(ByteRange::contiguous(4, 8)), Memory::of(&mut y));
    run(saxpy(2, 1.0, &x, &whole));
    assert_eq!(y, [2.0, 3.0, 0.0, 0.0]);
}

#[test]
fn empty_operands_are_empty_slices() {
    let (mut x, mut y) = ([0u8; 0], [0u8; 0]);
    run(reversed(&Memory::of(&mut y), &Memory::of(&mut x)));
    let null = [Arg::scalar(0u32), Arg::scalar(1.0f32), Arg::slice(0, 0), Arg::slice(0, 0)];
    // SAFETY: the arguments fit, and no element is touched.
    unsafe { (SAXPY.twin.unwrap())(&null) };
}

#[test]
fn the_descriptor_says_what_was_declared() {
    use AccessMode::{Read, ReadWrite, Write};
    assert_eq!(SAXPY.name, "saxpy");
    assert_eq!(accesses(&SAXPY), [("n", None), ("a", None), ("x", Some(Read)), ("y", Some(ReadWrite))]);
    assert_eq!(accesses(&REVERSED), [("y", Some(Write)), ("x", Some(Read))]);
    assert!(matches!(SAXPY.source, Source::Cuda(text) if text.contains("__global__")));
    assert!(
        matches!(REVERSED.source, Source::Ptx { texts: [text], .. } if text.contains("the_descriptor_says"))
    );
    assert!(matches!(ADD.source, Source::None));
    assert!(REVERSED.library.is_some_and(|library| std::ptr::eq(library, &LIBRARY)));
    assert!(SAXPY.library.is_none() && ADD.library.is_none());
    let kinds: Vec<_> = STORE
        .params
        .iter()
        .map(|param| match param.kind {
            ParamKind::Scalar { element, bytes } => (element, bytes),
            ParamKind::Slice { element, .. } => (element, 0),
        })
        .collect();
    assert_eq!(kinds, [("f64", 8), ("u32", 4), ("i64", 8), ("u8", 1), ("f16", 2), ("f64", 0)]);
    #[allow(deprecated)]
    let count = elsewhere::count(&Memory::of(&mut [0])).kernel();
    assert!(std::ptr::eq(count, &elsewhere::COUNT));
}

#[test]
fn the_operands_are_the_slice_parameters_in_order() {
    let (mut x, mut y) = ([0u8; 3], [0u8; 3]);
    let (to, from) = (Memory::of(&mut y), Memory::of(&mut x));
    let call = reversed(&to, &from);
    let [y, x] = call.operands() else { panic!("{call:?}") };
    assert_eq!((y.access(), y.range(), y.address()), (AccessMode::Write, to.range, to.allocation.ptr));
    assert_eq!((x.access(), x.range(), x.address()), (AccessMode::Read, from.range, from.allocation.ptr));
    assert_eq!(call.args(), [Arg::slice(y.address().0, 3), Arg::slice(x.address().0, 3)]);
}

#[test]
fn the_first_of_several_conditions_that_does_not_hold_is_told() {
    let (mut one, mut none) = ([0.0], [0.0; 0]);
    let (one, none) = (Memory::of(&mut one), Memory::of(&mut none));
    assert!(
        refusal(add_(&none, &one))
            .starts_with("add_: \"!y.is_empty()\" does not hold: y.len() = 0, x.len() = 1;")
    );
    assert!(refusal(add_(&one, &none)).starts_with("add_: \"x.len() == y.len()\" does not hold"));
}

#[test]
fn a_strided_operand_is_refused() {
    let (mut x, mut y) = ([0.0; 1600], [0.0; 800]);
    let x = Memory::of(&mut x).viewed(ByteRange::strided(0, 32, 64, 100));
    let y = Memory::of(&mut y);
    let text = "saxpy: operand x is a strided view of 100 rows of 8 elements, and the kernel takes contiguous memory; \
                copy it first";
    assert_eq!(refusal(saxpy(800, 2.0, &x, &y)), text);
    assert_eq!(refusal(saxpy(801, 2.0, &x, &y)), text, "the first refusal stays");
}

#[test]
#[should_panic = "saxpy: 1 arguments do not fit its parameters"]
fn a_twin_refuses_a_wrong_number_of_arguments() {
    // SAFETY: none of the arguments is read.
    unsafe { (SAXPY.twin.unwrap())(&[Arg::scalar(1u32)]) }
}

#[test]
fn six_arguments_and_operands_are_kept_without_an_allocation() {
    let mut out = [0.0; 5];
    let out = Memory::of(&mut out);
    let KernelCall { args, operands, .. } = store(0.0, 0, 0, 0, half::f16::ZERO, &out);
    assert!(!args.spilled() && !operands.spilled());
}
