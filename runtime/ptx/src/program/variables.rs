//! The variables of a module in global and constant memory, with their initial values.

use super::error::LowerError;
use crate::exec::memory::Region;
use crate::text::{Init, Linkage, Module, Number, Space, Variable};

/// The most bytes that the variables of a module may have.
const MOST_BYTES: u64 = 1 << 30;
/// The bytes behind each variable that nothing uses, so that an overrun does not land in another
/// one.
const GAP: u64 = 512;

/// The memory of the variables of a module.
///
/// Kernels write to it while it is borrowed elsewhere, so it is reached by its address alone.
#[derive(Debug)]
pub(crate) struct Variables {
    /// Each block is one variable, of 16 bytes an item.
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    name: String,
    /// The initial value, and the memory unless that is elsewhere.
    memory: Box<[u128]>,
    /// The address that kernels use, if the memory belongs to the caller.
    elsewhere: Option<u64>,
    len_bytes: u64,
    element_bytes: u32,
    is_writable: bool,
}

impl Block {
    fn address(&self) -> u64 {
        self.elsewhere.unwrap_or_else(|| self.memory.as_ptr().expose_provenance() as u64)
    }
}

/// Returns the bytes of a fundamental type without its dot. PTX ISA 5.2.1.
pub(super) fn bytes_of(ty: &str) -> Option<u64> {
    Some(match ty {
        "pred" => 1,
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

/// Returns the size and the alignment of a variable, in bytes. An array without a size has none.
pub(super) fn layout_of(variable: &Variable<'_>) -> Result<(u64, u64), LowerError> {
    let error = |problem: String| LowerError { line: variable.line, problem };
    let element = bytes_of(variable.ty).ok_or_else(|| {
        error(format!("{} has the type .{}, which is not supported", variable.name, variable.ty))
    })?;
    let element = element * u64::from(variable.vector);
    let mut len = 1u64;
    for dim in &variable.dims {
        let dim = match (dim, &variable.init) {
            (Some(dim), _) => *dim,
            (None, Some(Init::List(items))) => items.len() as u64,
            (None, _) => 0,
        };
        len = len.checked_mul(dim).ok_or_else(|| error(format!("{} is too large", variable.name)))?;
    }
    let size = len.checked_mul(element).filter(|size| *size <= MOST_BYTES).ok_or_else(|| {
        error(format!("{} has more than {MOST_BYTES} bytes, the most that is supported", variable.name))
    })?;
    let align = variable.align.unwrap_or(element).max(1);
    if !align.is_power_of_two() || align > 1 << 16 {
        return Err(error(format!("{} has the alignment {align}; use a power of two", variable.name)));
    }
    Ok((size, align))
}

impl Variables {
    /// Allocates and initialises the variables of a module. `function` returns the address of a
    /// function. `place` returns the address of a variable, from its name and its size in bytes, if
    /// the variable is in the caller's memory.
    pub(crate) fn new(
        module: &Module<'_>,
        function: impl Fn(&str) -> Option<u64>,
        mut place: impl FnMut(&str, u64) -> Option<u64>,
    ) -> Result<Self, LowerError> {
        let of_memory = |variable: &&Variable<'_>| matches!(variable.space, Space::Global | Space::Const);
        let mut blocks = Vec::new();
        for variable in module.variables.iter().filter(of_memory) {
            if variable.linkage == Linkage::Extern {
                continue;
            }
            let (len_bytes, _) = layout_of(variable)?;
            // Compilers declare arrays of any type as bytes.
            let element = match variable.ty {
                "b8" => 0,
                ty => bytes_of(ty).unwrap_or(0) * u64::from(variable.vector),
            };
            blocks.push(Block {
                name: variable.name.to_owned(),
                memory: vec![0; (len_bytes + GAP).div_ceil(16) as usize].into(),
                elsewhere: place(variable.name, len_bytes),
                len_bytes,
                element_bytes: element as u32,
                is_writable: variable.space == Space::Global,
            });
        }
        let mut variables = Variables { blocks };
        for variable in module.variables.iter().filter(of_memory) {
            if let Some(init) = &variable.init {
                variables.initialise(variable, init, &function)?;
            }
        }
        Ok(variables)
    }

    /// Returns the address and the size of a variable in bytes.
    pub(crate) fn find(&self, name: &str) -> Option<(u64, u64)> {
        let block = self.blocks.iter().find(|block| block.name == name)?;
        Some((block.address(), block.len_bytes))
    }

    /// Returns each variable's name, its address and its initial bytes.
    pub(crate) fn initial(&self) -> impl Iterator<Item = (&str, u64, Vec<u8>)> {
        self.blocks.iter().map(|block| {
            let bytes = block.memory.iter().flat_map(|item| item.to_le_bytes());
            (block.name.as_str(), block.address(), bytes.take(block.len_bytes as usize).collect())
        })
    }

    /// Returns the memory of all variables that are not in the caller's memory.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.blocks.iter().filter(|block| block.elsewhere.is_none()).map(|block| Region {
            name: block.name.clone(),
            start: block.address(),
            len_bytes: block.len_bytes,
            is_writable: block.is_writable,
            is_undefined: false,
            element_bytes: block.element_bytes,
        })
    }

    fn initialise(
        &mut self,
        variable: &Variable<'_>,
        init: &Init<'_>,
        function: &impl Fn(&str) -> Option<u64>,
    ) -> Result<(), LowerError> {
        let error = |problem: String| LowerError { line: variable.line, problem };
        let element = bytes_of(variable.ty).unwrap_or(1) as usize;
        let (_, len) = self.find(variable.name).unwrap_or_default();
        let mut values = Vec::new();
        self.values(variable, init, function, 0, &mut values)?;
        let at = self.blocks.iter().position(|block| block.name == variable.name);
        let Some(block) = at.map(|at| &mut self.blocks[at]) else { return Ok(()) };
        if values.len() * element > len as usize {
            let (found, room) = (values.len(), len as usize / element);
            return Err(error(format!("{} has {room} elements and {found} initial values", variable.name)));
        }
        for (at, value) in values.into_iter().enumerate() {
            for (byte, value) in value.to_le_bytes().into_iter().take(element).enumerate() {
                let place = at * element + byte;
                let shift = place % 16 * 8;
                block.memory[place / 16] &= !(0xff << shift);
                block.memory[place / 16] |= u128::from(value) << shift;
            }
        }
        Ok(())
    }

    /// Lists the elements of an initial value. An inner list fills the elements of its dimension.
    fn values(
        &self,
        variable: &Variable<'_>,
        init: &Init<'_>,
        function: &impl Fn(&str) -> Option<u64>,
        depth: usize,
        values: &mut Vec<u64>,
    ) -> Result<(), LowerError> {
        let error = |problem: String| LowerError { line: variable.line, problem };
        match init {
            Init::Number(number) => values.push(bits_of(*number, variable.ty)),
            Init::Address { name, offset, .. } => {
                let address = self.find(name).map(|(address, _)| address).or_else(|| function(name));
                let address = address.ok_or_else(|| error(format!("there is no variable {name}")))?;
                values.push(address.wrapping_add_signed(*offset));
            }
            Init::List(items) => {
                // The number of elements of one item: of all later dimensions, and of a vector.
                let dims = variable.dims.get(depth + 1..).unwrap_or_default();
                let inner: u64 = dims.iter().map(|dim| dim.unwrap_or(1)).product();
                let is_nested = items.iter().any(|item| matches!(item, Init::List(_)));
                for item in items {
                    let before = values.len() as u64;
                    self.values(variable, item, function, depth + 1, values)?;
                    if is_nested {
                        let end = (before + inner * u64::from(variable.vector)).min(MOST_BYTES);
                        values.resize((end as usize).max(values.len()), 0);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the bits of a number as a value of a type.
pub(super) fn bits_of(number: Number, ty: &str) -> u64 {
    match (number, ty) {
        (Number::Integer(value), "f32") => u64::from((value as f32).to_bits()),
        (Number::Integer(value), "f64") => (value as f64).to_bits(),
        (Number::Integer(value), _) => value as u64,
        (Number::F32(bits), "f64") => f64::from(f32::from_bits(bits)).to_bits(),
        (Number::F32(bits), _) => bits.into(),
        (Number::F64(bits), "f32") => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (Number::F64(bits), _) => bits,
    }
}
