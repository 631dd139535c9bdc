//! The PTX of kernels, loaded with their first launch. CUDA C++ is compiled to PTX first.

use crate::kernel_options::CompileCuda;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use warpline_driver::kernel::{Kernel, Source, difference_in_ptx, head};
use warpline_driver::{DevicePtr, ErrorKind};
use warpline_ptx as ptx;

/// The loaded kernels and modules of a device.
#[derive(Debug)]
pub(super) struct Code {
    compile: Option<CompileCuda>,
    /// Kernels by the addresses of their descriptions, or why their PTX cannot be loaded. Of a
    /// kernel without PTX, only the twin runs.
    kernels: RwLock<HashMap<usize, Result<Option<ptx::Kernel>, String>>>,
    /// Modules by the addresses of their texts: several kernels may share one, and its variables.
    modules: Mutex<HashMap<usize, ptx::Module>>,
}

impl Code {
    pub(super) fn new(compile: Option<CompileCuda>) -> Self {
        Code { compile, kernels: RwLock::default(), modules: Mutex::default() }
    }

    /// Returns the PTX of a kernel, which it loads if this is the first call. Returns `None` for a
    /// kernel that has a twin and no PTX: no device code, an image, or CUDA C++ without a compiler.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub(super) fn of(&self, kernel: &'static Kernel) -> Result<Option<ptx::Kernel>, String> {
        let key = std::ptr::from_ref(kernel) as usize;
        if let Some(loaded) = self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return loaded.clone();
        }
        let loaded = self.load(kernel);
        let is_known = matches!(loaded, Ok(_) | Err(Missing::Loadable(_)));
        let loaded = loaded.map_err(|missing| format!("{} cannot be loaded: {}", kernel.name, missing.why()));
        if is_known {
            self.kernels.write().unwrap_or_else(PoisonError::into_inner).insert(key, loaded.clone());
        }
        loaded
    }

    fn load(&self, kernel: &'static Kernel) -> Result<Option<ptx::Kernel>, Missing> {
        let module = match self.module(kernel) {
            Err(Missing::Code(_)) if kernel.twin.is_some() => return Ok(None),
            module => module?,
        };
        let loaded = module.kernel(kernel.name).map_err(|error| Missing::Loadable(unsupported(error)))?;
        let needed = super::run::param_bytes(kernel);
        if loaded.param_bytes() == needed {
            return Ok(Some(loaded));
        }
        Err(Missing::Loadable(format!(
            "its parameters have {needed} bytes together in the declaration and {} in its PTX; declare them with \
             their natural alignment",
            loaded.param_bytes()
        )))
    }

    /// Returns the address and the size in bytes of a variable in the module of `kernel`.
    ///
    /// # Errors
    /// Why the module cannot be loaded, or that it has no such variable.
    pub(super) fn variable(&self, kernel: &'static Kernel, name: &str) -> Result<(DevicePtr, usize), String> {
        let module = self.module(kernel).map_err(Missing::why)?;
        let (address, len_bytes) = module.variable(name).ok_or_else(|| {
            format!(
                "the module of {} has no variable \"{name}\"; declare it extern \"C\", or pass its name in the PTX",
                kernel.name
            )
        })?;
        Ok((DevicePtr(address), len_bytes as usize))
    }

    fn module(&self, kernel: &'static Kernel) -> Result<ptx::Module, Missing> {
        let none = |why: &str| {
            Err(Missing::Code(format!("{why}, and it has no CPU form; give the kernel cpu or ptx")))
        };
        let text = match kernel.source {
            // A text without a head counts as the oldest.
            Source::Ptx { texts, .. } => texts.iter().max_by_key(|text| head(text).map(|head| head.target)),
            Source::Cuda(ref text) => Some(text),
            Source::Image(_) => return none("its device code is an image, which only a GPU runs"),
            Source::None => return none("it has no device code"),
        };
        let Some(text) = text else { return none("its list of PTX texts is empty") };
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = text.as_ptr() as usize;
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        let ptx = match (kernel.source, self.compile) {
            (Source::Cuda(_), None) => {
                return none(
                    "its device code is CUDA C++, and warpline was built without its feature cuda, which compiles it",
                );
            }
            (Source::Cuda(_), Some(compile)) => {
                compile(kernel.name, text).map_err(|error| match error.kind() {
                    ErrorKind::Unsupported => Missing::Code(error.to_string()),
                    _ => Missing::Compiled(error.to_string()),
                })?
            }
            _ => (*text).to_owned(),
        };
        if let Some(why) = difference_in_ptx(kernel, &ptx) {
            return Err(Missing::Loadable(why));
        }
        let module = ptx::Module::new(ptx).map_err(|error| Missing::Loadable(unsupported(error)))?;
        modules.insert(key, module.clone());
        Ok(module)
    }
}

/// Why there is no module.
enum Missing {
    /// There is no PTX. A twin can run instead.
    Code(String),
    /// The compiler made no PTX. It may do so another time, and remembers what it never compiles.
    Compiled(String),
    /// There is PTX, which can never be loaded.
    Loadable(String),
}

impl Missing {
    fn why(self) -> String {
        match self {
            Missing::Code(why) | Missing::Compiled(why) | Missing::Loadable(why) => why,
        }
    }
}

fn unsupported(error: ptx::LoadError) -> String {
    format!("its PTX cannot run on a CPU device: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpline_driver::kernel::Compared;

    static COMPARED: Compared = Compared::not_yet();
    static BROKEN: Kernel = Kernel {
        name: "broken",
        params: &[],
        in_place: false,
        source: Source::Ptx {
            texts: &[".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry broken() { jump; }"],
            from_sm_60: false,
        },
        library: None,
        twin: None,
        tolerance: 0.0,
        compared: &COMPARED,
    };

    #[test]
    fn ptx_that_cannot_be_loaded_is_read_once() {
        let code = Code::new(None);
        let why = code.of(&BROKEN).unwrap_err();
        assert!(
            why.starts_with("broken cannot be loaded: its PTX cannot run on a CPU device: line 4"),
            "{why}"
        );
        let key = std::ptr::from_ref(&BROKEN) as usize;
        let kept = code.kernels.write().unwrap().insert(key, Err("it is known".to_owned()));
        assert_eq!(kept.unwrap().unwrap_err(), why);
        assert_eq!(code.of(&BROKEN).unwrap_err(), "it is known");
    }
}
