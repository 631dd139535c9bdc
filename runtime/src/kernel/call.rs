//! A kernel call: a kernel with its operands and arguments, ready to launch.
//!
//! The function that [`kernel!`](crate::kernel!) writes makes the call. It checks the conditions on
//! the operands alone: that they are contiguous and that the `where` holds. The call keeps the
//! error of a failed check, and the launch refuses it, so that calls can be written in one
//! expression. Making a call of up to six operands and six arguments allocates nothing.

use super::{AccessMode, Arg, Args, Elements, IntoOperand, Kernel, Operand, ParamKind};
use smallvec::SmallVec;
use std::fmt;
use warpline_driver::{Element, Error, ErrorKind, LaunchExtras, ReachedMemory};

/// A kernel with its arguments, to be launched with [`Stream::launch`](crate::Stream::launch).
///
/// Made by the function that [`kernel!`](crate::kernel!) writes. It borrows its operands; the
/// launch keeps their memory alive.
#[must_use = "a call does nothing until it is launched on a stream"]
pub struct KernelCall<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) args: Args,
    pub(crate) operands: Operands<'a>,
    /// Few calls have any. One word, because moving a call costs each launch.
    pub(crate) extras: Option<Box<LaunchExtras>>,
    pub(crate) failed: Option<Error>,
}

/// The operands of a call, in the order of the kernel's slice parameters. Memory that the kernel
/// reaches through pointers follows.
pub(crate) type Operands<'a> = SmallVec<[Operand<'a>; 6]>;

/// Returns the call of `kernel` with these arguments. If `failed` is an error, the launch refuses
/// the call with it.
///
/// # Safety
/// `args` fit the kernel's parameters, and `operands` are its slice parameters in order, with
/// their access.
#[inline]
pub unsafe fn call<'a, const ARGS: usize, const OPERANDS: usize>(
    kernel: &'static Kernel,
    args: [Arg; ARGS],
    operands: [Operand<'a>; OPERANDS],
    failed: Option<Error>,
) -> KernelCall<'a> {
    let (no_args, no_operands) = (Args::new(), Operands::new());
    let mut call = KernelCall { kernel, args: no_args, operands: no_operands, extras: None, failed };
    put(&mut call.args, args);
    put(&mut call.operands, operands);
    call
}

impl<'a> KernelCall<'a> {
    /// Returns the kernel.
    #[inline]
    pub const fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Returns one argument for each of the kernel's parameters.
    #[inline]
    pub fn args(&self) -> &[Arg] {
        &self.args
    }

    /// Returns one operand for each of the kernel's slice parameters, in order, and then those of
    /// [`reads`](Self::reads) and [`writes`](Self::writes).
    #[inline]
    pub fn operands(&self) -> &[Operand<'a>] {
        &self.operands
    }

    /// Declares memory that the kernel reads through a pointer which is not a parameter: one in
    /// other memory, or in a scalar.
    ///
    /// The order check treats it like an operand. A CPU device that runs the kernel's PTX lets it
    /// read this memory, and reports each access to memory that is not declared.
    ///
    /// # Examples
    /// ```
    /// use warpline::prelude::*;
    ///
    /// warpline::kernel! {
    ///     /// Reads the number behind the pointer `from`.
    ///     unsafe fn follow(from: u64, write to: &mut [u32]) {
    ///         ptx: ".version 8.0\n.target sm_70\n.address_size 64
    ///             .visible .entry follow(.param .u64 from, .param .u64 to) {
    ///                 .reg .b64 %rd<2>; .reg .b32 %r;
    ///                 ld.param.u64 %rd0, [from]; ld.param.u64 %rd1, [to];
    ///                 ld.global.u32 %r, [%rd0]; st.global.u32 [%rd1], %r; ret;
    ///             }",
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> warpline::Result<()> {
    /// # let runtime = Runtime::builder().build()?;
    /// let stream = runtime.device(DeviceId::Cpu(0))?.new_stream()?;
    /// let (from, to) = (stream.alloc::<u32>(1)?, stream.alloc::<u32>(1)?);
    /// stream.fill(&from, 7).queued()?;
    /// let call = follow(from.device_ptr().0, &to).reads(&from);
    /// stream.launch(call, LaunchConfig::linear(1, 1)).queued()?;
    /// assert_eq!(stream.read(&to).await?, [7]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reads<T: Element>(self, memory: impl IntoOperand<'a, T>) -> Self {
        self.reaching(memory.into_operand(), AccessMode::Read)
    }

    /// Declares memory that the kernel reads and writes through a pointer which is not a parameter,
    /// like [`reads`](Self::reads).
    pub fn writes<T: Element>(self, memory: impl IntoOperand<'a, T>) -> Self {
        self.reaching(memory.into_operand(), AccessMode::ReadWrite)
    }

    fn reaching<T: Element>(mut self, memory: Elements<'a, T>, access: AccessMode) -> Self {
        let (element_bytes, operand) = (size_of::<T>(), memory.with_access(access));
        if !operand.is_contiguous() && self.failed.is_none() {
            let what = if access.writes() { "writes" } else { "reads" };
            let why = format!(
                "{}: the memory of {what} is a strided view, and it has to be contiguous; name the whole buffer",
                self.kernel.name
            );
            self.failed = Some(Error::new(ErrorKind::Shape, why));
        }
        let (address, len_bytes) = (operand.address(), operand.range.len_bytes());
        let memory = ReachedMemory { address, len_bytes, element: T::NAME, element_bytes, access };
        self.extras.get_or_insert_default().reached.push(memory);
        self.operands.push(operand);
        self
    }

    /// Returns the error that the launch will be refused with, if an operand is strided or a
    /// condition of the `where` does not hold.
    #[inline]
    pub const fn refusal(&self) -> Option<&Error> {
        self.failed.as_ref()
    }
}

/// Returns the error of a strided operand, if there is one.
#[inline]
pub fn strided_operand<const N: usize>(kernel: &'static Kernel, operands: [Operand<'_>; N]) -> Option<Error> {
    // Passed by value, so that the fast path keeps them in registers and needs no address of them.
    if operands.iter().all(Operand::is_contiguous) { None } else { refuse_strided(kernel, operands) }
}

#[cold]
#[inline(never)]
fn refuse_strided<const N: usize>(kernel: &Kernel, operands: [Operand<'_>; N]) -> Option<Error> {
    let slices = kernel.params.iter().filter(|param| matches!(param.kind, ParamKind::Slice { .. }));
    let (param, operand) = slices.zip(&operands).find(|(_, operand)| !operand.is_contiguous())?;
    let ParamKind::Slice { element_bytes, .. } = param.kind else { return None };
    let rows = operand.range.runs().count();
    let why = format!(
        "{}: operand {} is a strided view of {rows} rows of {} elements, and the kernel takes contiguous \
         memory; copy it first",
        kernel.name,
        param.name,
        operand.range.len_bytes() as usize / element_bytes / rows,
    );
    Some(Error::new(ErrorKind::Shape, why))
}

/// Returns the error of a call that does not satisfy the kernel's `where`.
#[cold]
#[inline(never)]
pub fn does_not_hold(kernel: &Kernel, condition: &str, values: &[(&str, &dyn fmt::Debug)]) -> Error {
    let values: Vec<_> = values.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    let (name, values) = (kernel.name, values.join(", "));
    let why = format!("{name}: \"{condition}\" does not hold: {values}; pass arguments that satisfy it");
    Error::new(ErrorKind::Shape, why)
}

/// Puts `items` into the empty `list`. Writing them in place is faster than pushing them one by
/// one.
#[inline]
fn put<T: Copy, const N: usize>(list: &mut SmallVec<[T; 6]>, items: [T; N]) {
    debug_assert!(list.is_empty());
    if N > 6 {
        return list.extend_from_slice(&items);
    }
    // SAFETY: `write` needs room for N items: six fit without an allocation. They are plain values
    // that own nothing.
    unsafe { list.as_mut_ptr().cast::<[T; N]>().write(items) };
    // SAFETY: `set_len` needs N initialised items, which the line above wrote, and room for them.
    unsafe { list.set_len(N) };
}

impl fmt::Debug for KernelCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCall")
            .field("kernel", &self.kernel.name)
            .field("args", &self.args)
            .field("refusal", &self.failed)
            .finish_non_exhaustive()
    }
}
