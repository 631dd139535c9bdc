//! Reading of tensors for printing. `text` has the format.

use super::call::{Call, Outcome};
use super::element::Storage;
use super::text::{EDGE, Elements, Layout, SUMMARIZED_ABOVE, TensorDisplay, text};
use super::{DType, Shape, Tensor};
use warpline_runtime::{DeviceId, Pending, Refusal};

/// Reads the elements of `x` that its text shows, and maybe more.
#[track_caller]
pub(super) fn display(x: &Tensor) -> Outcome<TensorDisplay> {
    let call = Call::new(&"display", &x.device())?;
    let (edges, kept) = edges(&call, x)?;
    let (dtype, default, id) = (x.dtype(), DType::default_float(), x.device().id());
    let layout = layout(x, kept);
    let device = (id != DeviceId::Cpu(0)).then(|| id.to_string());
    let read = read(&call, edges.as_ref().unwrap_or(&x.storage));
    Ok(read.map(move |elements| text(elements, &layout, dtype, default, device.as_deref())))
}

/// The number of copies up to which the edges are copied, instead of reading everything.
const MOST_COPIES: usize = 64;

/// Copies the edges of the first long dimension of `x`, if the text shows no more. Also returns the
/// sizes of what is left, in the order of the memory.
fn edges(call: &Call<'_>, x: &Tensor) -> Result<(Option<Storage>, Shape), Refusal> {
    let mut sizes = x.shape.to_vec();
    if x.transposed {
        sizes.reverse();
    }
    let long = sizes.iter().position(|&size| size > 2 * EDGE);
    let Some(dim) = long.filter(|_| x.len() > SUMMARIZED_ABOVE) else { return Ok((None, sizes.into())) };
    let outer: usize = sizes[..dim].iter().product();
    if outer > MOST_COPIES / 2 {
        return Ok((None, sizes.into()));
    }
    let edge = EDGE * sizes[dim + 1..].iter().product::<usize>();
    let block = x.len() / outer;
    let to = Storage::alloc(call, x.dtype(), outer * 2 * edge)?;
    for n in 0..outer {
        let starts = [n * block, (n + 1) * block - edge];
        for (part, start) in (2 * n..).zip(starts) {
            let slice = |storage: &Storage, start| storage.slice(start, start + edge);
            let from = slice(&x.storage, start).map_err(|error| call.refused(error))?;
            let to = slice(&to, part * edge).map_err(|error| call.refused(error))?;
            let stream = call.stream().at(call.site());
            call.through(stream.copy_buffer::<u8>(&to.words(), &from.words()))?;
        }
    }
    sizes[dim] = 2 * EDGE;
    Ok((Some(to), sizes.into()))
}

/// Returns the layout of the elements, of which `kept` are read, in the order of the memory.
fn layout(x: &Tensor, kept: Shape) -> Layout {
    // Without elements, the other sizes may be anything.
    let stride =
        |dim: usize| kept[dim + 1..].iter().fold(1_usize, |product, size| product.saturating_mul(*size));
    let (mut kept, mut strides) = (kept.to_vec(), (0..kept.len()).map(stride).collect::<Vec<usize>>());
    if x.transposed {
        kept.reverse();
        strides.reverse();
    }
    Layout { shape: x.shape.clone(), kept: kept.into(), strides: strides.into() }
}

/// Reads all elements of `storage`.
fn read(call: &Call<'_>, storage: &Storage) -> Pending<Elements> {
    let stream = call.stream().at(call.site());
    macro_rules! read {
        ($buffer:expr, $kind:ident, $convert:expr) => {
            stream.read($buffer).map(|read| Elements::$kind(read.into_iter().map($convert).collect()))
        };
    }
    match storage {
        Storage::F32(buffer) => read!(buffer, Floats, f64::from),
        Storage::F64(buffer) => read!(buffer, Floats, f64::from),
        Storage::F16(buffer) => read!(buffer, Floats, f64::from),
        Storage::BF16(buffer) => read!(buffer, Floats, f64::from),
        Storage::I64(buffer) => read!(buffer, Integers, i64::from),
        Storage::I32(buffer) => read!(buffer, Integers, i64::from),
        Storage::I16(buffer) => read!(buffer, Integers, i64::from),
        Storage::I8(buffer) => read!(buffer, Integers, i64::from),
        Storage::U8(buffer) => read!(buffer, Integers, i64::from),
        Storage::Bool(buffer) => read!(buffer, Truths, |byte| byte != 0),
    }
}
