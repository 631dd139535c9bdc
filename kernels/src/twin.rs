//! Runs a kernel's twin on slices, through its descriptor.

use warpline_runtime::Element;
use warpline_runtime::kernel::{AccessMode, Arg, Kernel, ParamKind};
use zerocopy::IntoBytes;

/// One argument of a twin.
pub(crate) enum Given<'a> {
    Scalar { element: &'static str, arg: Arg },
    Read { element: &'static str, arg: Arg, _borrow: &'a [u8] },
    Written { element: &'static str, arg: Arg, _borrow: &'a mut [u8] },
}

pub(crate) fn value<T: Element>(value: T) -> Given<'static> {
    Given::Scalar { element: T::NAME, arg: Arg::scalar(value) }
}

pub(crate) fn read<T: Element>(slice: &[T]) -> Given<'_> {
    let arg = Arg::slice(slice.as_ptr() as u64, slice.len());
    Given::Read { element: T::NAME, arg, _borrow: slice.as_bytes() }
}

pub(crate) fn written<T: Element>(slice: &mut [T]) -> Given<'_> {
    let arg = Arg::slice(slice.as_mut_ptr() as u64, slice.len());
    Given::Written { element: T::NAME, arg, _borrow: slice.as_mut_bytes() }
}

/// Calls the twin of `kernel`.
///
/// # Panics
/// Panics if the arguments do not fit the kernel's parameters or its `where` conditions.
pub(crate) fn run(kernel: &Kernel, given: &[Given<'_>]) {
    assert_eq!(kernel.params.len(), given.len(), "{}", kernel.name);
    let args: Vec<Arg> = kernel
        .params
        .iter()
        .zip(given)
        .map(|(param, given)| match (param.kind, given) {
            (ParamKind::Scalar { element: asked, .. }, Given::Scalar { element, arg })
                if asked == *element =>
            {
                *arg
            }
            (
                ParamKind::Slice { element: asked, access: AccessMode::Read, .. },
                Given::Read { element, arg, .. },
            ) if asked == *element => *arg,
            (ParamKind::Slice { element: asked, access, .. }, Given::Written { element, arg, .. })
                if access.writes() && asked == *element =>
            {
                *arg
            }
            _ => panic!("{}: {} is not a {:?}", kernel.name, param.name, param.kind),
        })
        .collect();
    // SAFETY: a twin needs arguments that fit its parameters, which the code above has checked. It
    // also needs slices valid for their access, which `given` borrows until the twin returns.
    unsafe { (kernel.twin.expect("it has one"))(&args) }
}
