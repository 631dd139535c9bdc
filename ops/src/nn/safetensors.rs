//! The state of a module in the format of the crate `safetensors`.

use super::Module;
use crate::{DType, Tensor, TensorOps};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo, TensorView};
use std::collections::BTreeSet;
use std::future::Future;
use warpline_runtime::{Error, ErrorKind, Pending, Result, Site};

/// Reads the parameters and buffers of `module` back to the host, as the bytes of a safetensors
/// file.
///
/// The reads are enqueued when the call returns; the future waits for them. Names are those of
/// [`Module::state_dict`], so PyTorch loads the file into a module of the same structure. A tensor
/// with several names is stored once for each.
///
/// The task that awaits it copies to the file, at most 1 MiB in a poll, so other tasks of the
/// executor run meanwhile.
///
/// # Errors
/// The errors of [`TensorOps::to_vec`](crate::TensorOps::to_vec); `Data` if two tensors have one
/// name.
///
/// # Cancel safety
/// If the future is dropped, what was read is lost.
///
/// # Examples
/// ```
/// use warpline::nn::{Linear, load_safetensors, to_safetensors};
/// use warpline::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # futures::executor::block_on(async {
/// let device = Device::best()?;
/// let net = Linear::new(784, 10, &device)?;
/// let file = std::env::temp_dir().join("linear.safetensors");
/// std::fs::write(&file, to_safetensors(&net).await?)?;
///
/// let copy = Linear::new(784, 10, &device)?;
/// load_safetensors(&copy, &std::fs::read(&file)?).queued()?;
/// # std::fs::remove_file(&file)?;
/// assert_eq!(net.weight.to_vec::<f32>().await?, copy.weight.to_vec::<f32>().await?);
/// # Ok(())
/// # })
/// # }
/// ```
#[track_caller]
pub fn to_safetensors(module: &dyn Module) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
    let site = Site::here(&"to_safetensors");
    let mut state = module.state_dict();
    // The crate has this order, the widest types first, so that each tensor is aligned.
    state.sort_by(|(left, x), (right, y)| {
        stored(y.dtype()).cmp(&stored(x.dtype())).then_with(|| left.cmp(right))
    });
    let (mut reads, mut tensors, mut end) = (Vec::new(), Vec::new(), 0);
    for (name, tensor) in state {
        reads.push(match tensor.contiguous().into_operand() {
            Ok(tensor) => tensor.read_bytes(&"to_safetensors"),
            Err(refusal) => refusal.pass_on(),
        });
        let (dtype, shape, start) = (tensor.dtype(), tensor.shape().to_vec(), end);
        end += dtype.size() * shape.iter().product::<usize>();
        tensors.push((name, TensorInfo { dtype: stored(dtype), shape, data_offsets: (start, end) }));
    }
    async move {
        let mut file = header(site, tensors)?;
        file.reserve_exact(end);
        for bytes in reads {
            for piece in bytes.await?.chunks(PIECE_BYTES) {
                file.extend_from_slice(piece);
                tokio::task::yield_now().await;
            }
        }
        Ok(file)
    }
}

/// The most bytes that a poll copies.
const PIECE_BYTES: usize = 1 << 20;

/// Returns the beginning of a file, up to the data. The format is that of the crate's
/// documentation: the length of a description in JSON, and the description, which spaces extend to
/// a multiple of 8 bytes.
fn header(site: Site, tensors: Vec<(String, TensorInfo)>) -> Result<Vec<u8>> {
    let mut names = BTreeSet::new();
    if let Some((name, _)) = tensors.iter().find(|(name, _)| !names.insert(name)) {
        return Err(named_twice(site, name));
    }
    let metadata = Metadata::new(None, tensors).map_err(|error| unfit(site, &error.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| unfit(site, &error.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// Loads the parameters and buffers of `module` from the bytes of a safetensors file.
///
/// They are written in place, on the current streams of their devices, so clones of the module and
/// captured graphs get them too. `bytes` is copied before the call returns. The `Pending` resolves
/// when everything is written. A tensor with several names is written once for each, in the order
/// of [`Module::state_dict`], and keeps the last.
///
/// # Errors
/// In the `Pending`. These leave the module as it was:
/// - `Data` if `bytes` is no such file, or lacks a tensor of the module, or has one that the module
///   does not have, or if two tensors of the module have one name;
/// - `Shape` and `DTypeMismatch` if a tensor differs from the module's. Nothing is converted: bring
///   the module to the file's type first, with [`Module::to`].
///
/// Also the errors of [`Stream::write`](warpline_runtime::Stream::write), which may leave a part
/// of the tensors unwritten. `OutOfMemory` is among them, if the pinned memory that is held leaves
/// no room.
#[track_caller]
pub fn load_safetensors(module: &dyn Module, bytes: &[u8]) -> Pending<()> {
    let site = Site::here(&"load_safetensors");
    let file = match opened(bytes) {
        Ok(file) => file,
        Err(why) => {
            let why = format!("the bytes are not a safetensors file ({why}); pass a whole file");
            return Pending::refused(unfit(site, &why));
        }
    };
    let tensors = module.state_dict();
    let views = match fitting(site, &tensors, &file) {
        Ok(views) => views,
        Err(error) => return Pending::refused(error),
    };
    let mut writes = Vec::with_capacity(views.len());
    for ((_, tensor), view) in tensors.iter().zip(&views) {
        writes.push(tensor.write_bytes(&"load_safetensors", view.data()));
    }
    Pending::join_all(writes)
}

/// Reads the header of a file. Returns the reason if it is not valid.
fn opened(bytes: &[u8]) -> Result<SafeTensors<'_>, String> {
    /// The bytes before the header, which hold its length.
    const PREFIX_BYTES: usize = size_of::<u64>();
    // The crate adds the length that the header states for the data to that of the header, without
    // a check. So this is checked first.
    if let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>()
        && let Ok(header_bytes) = usize::try_from(u64::from_le_bytes(*prefix))
        && let Some((header, data)) = rest.split_at_checked(header_bytes)
        && let Ok(metadata) = serde_json::from_slice::<Metadata>(header)
        && metadata.data_len() > data.len()
    {
        return Err(format!(
            "its header describes {} bytes of data, and {} follow it",
            metadata.data_len(),
            data.len()
        ));
    }
    SafeTensors::deserialize(bytes).map_err(|error| shown(&error.to_string()))
}

/// Returns text from a file for an error: escaped, and not longer than a line.
fn shown(text: &str) -> String {
    const MOST_CHARS: usize = 100;
    let mut shown: String = text.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// Lists names for an error.
fn listed(names: &[&str]) -> String {
    const MOST_NAMES: usize = 8;
    if names.is_empty() {
        return "none".to_owned();
    }
    let mut list = names.iter().take(MOST_NAMES).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if names.len() > MOST_NAMES {
        list += &format!(" and {} more", names.len() - MOST_NAMES);
    }
    list
}

/// Returns the tensors of the file in the order of `tensors`, if all of them fit.
fn fitting<'f>(
    site: Site,
    tensors: &[(String, Tensor)],
    file: &SafeTensors<'f>,
) -> Result<Vec<TensorView<'f>>> {
    let mut wanted = BTreeSet::new();
    for (name, _) in tensors {
        if !wanted.insert(&**name) {
            return Err(named_twice(site, name));
        }
    }
    let given: BTreeSet<&str> = file.names().into_iter().collect();
    if wanted != given {
        let missing: Vec<&str> = wanted.difference(&given).copied().collect();
        let unexpected: Vec<&str> = given.difference(&wanted).copied().collect();
        let why = format!(
            "the file does not have the tensors of the module; missing: {}; unexpected: {}; pass a \
             file of a module of the same structure",
            listed(&missing),
            listed(&unexpected)
        );
        return Err(unfit(site, &why));
    }
    let fit = tensors.iter().map(|(name, tensor)| {
        let view = file.tensor(name).expect("the names were compared above");
        if view.shape() != tensor.shape() {
            let why = format!(
                "{site}: {name} has shape {:?} in the file and {:?} in the module; make the module \
                 with the file's sizes",
                view.shape(),
                tensor.shape()
            );
            return Err(Error::new(ErrorKind::Shape, why));
        }
        if view.dtype() != stored(tensor.dtype()) {
            let why = format!(
                "{site}: {name} is {} in the file and {} in the module; convert the module first, with \
                 .to(DType::…)",
                view.dtype(),
                stored(tensor.dtype())
            );
            return Err(Error::new(ErrorKind::DTypeMismatch, why));
        }
        if !tensor.is_contiguous() {
            let why = format!(
                "{site}: {name} is a transposed view, and only tensors in row-major order are written; \
                 call .contiguous() on it"
            );
            return Err(Error::new(ErrorKind::Shape, why));
        }
        if view.dtype() == Dtype::BOOL && view.data().iter().any(|&byte| byte > 1) {
            return Err(unfit(site, &format!("{name} holds bytes that are neither 0 nor 1; pass booleans")));
        }
        Ok(view)
    });
    fit.collect()
}

fn named_twice(site: Site, name: &str) -> Error {
    unfit(site, &format!("two tensors of the module are named {name}; give each its own name"))
}

fn unfit(site: Site, why: &str) -> Error {
    Error::new(ErrorKind::Data, format!("{site}: {why}"))
}

/// Returns the type in files of elements of type `dtype`.
fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
