//! Modules, kernels and launches, as users of this crate see them.

use crate::checks::Checks;
use crate::exec::clusters::{Cluster, Clusters, MOST_BLOCKS, MOST_SHARED_BYTES};
use crate::exec::code::Code;
use crate::exec::context::Launch as Shared;
use crate::exec::fault::Fault;
use crate::exec::grid::Grid;
use crate::exec::lanes::Level;
use crate::exec::memory::{AddressSpace, Region, Regions};
use crate::program::{LowerError, Variables, address_of, lower};
use crate::text::{self, ParseError};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// A PTX text that has been read, with memory for its variables.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    text: String,
    variables: Variables,
}

/// A PTX text that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not PTX.
    Parse(ParseError),
    /// It contains what this crate does not support, or names that do not fit.
    Lower(LowerError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Parse(error) => error.fmt(f),
            LoadError::Lower(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Parse(error) => Some(error),
            LoadError::Lower(error) => Some(error),
        }
    }
}

impl Module {
    /// Reads a PTX text, and initialises its variables.
    ///
    /// # Errors
    /// [`LoadError`], with the line of the text.
    pub fn new(text: impl Into<String>) -> Result<Self, LoadError> {
        Self::load(text.into(), |_, _| None)
    }

    /// Reads a PTX text whose variables are in the caller's memory. `place` returns the address of
    /// a variable, as kernels see it, from the variable's name and its size in bytes.
    ///
    /// The caller writes the [`initial_values`](Self::initial_values) there before the first
    /// launch. Launches need a [`Memory`] that has these addresses.
    ///
    /// # Errors
    /// [`LoadError`], with the line of the text.
    pub fn with_variables_at(
        text: impl Into<String>,
        mut place: impl FnMut(&str, u64) -> u64,
    ) -> Result<Self, LoadError> {
        Self::load(text.into(), |name, len_bytes| Some(place(name, len_bytes)))
    }

    fn load(text: String, place: impl FnMut(&str, u64) -> Option<u64>) -> Result<Self, LoadError> {
        let module = text::parse(&text).map_err(LoadError::Parse)?;
        let function = |name: &str| address_of(&module, name);
        let variables = Variables::new(&module, function, place).map_err(LoadError::Lower)?;
        Ok(Module(Arc::new(Loaded { text, variables })))
    }

    /// Returns the name, the address and the initial bytes of each variable in global or constant
    /// memory.
    pub fn initial_values(&self) -> impl Iterator<Item = (&str, u64, Vec<u8>)> {
        self.0.variables.initial()
    }

    /// Returns the names of the kernels.
    pub fn kernels(&self) -> Vec<String> {
        let Ok(module) = text::parse(&self.0.text) else { return Vec::new() };
        let kernels =
            module.functions.iter().filter(|function| function.is_kernel && function.body.is_some());
        kernels.map(|kernel| kernel.name.to_owned()).collect()
    }

    /// Returns the address and the size in bytes of a variable in global or constant memory.
    pub fn variable(&self, name: &str) -> Option<(u64, u64)> {
        self.0.variables.find(name)
    }

    /// Prepares a kernel.
    ///
    /// # Errors
    /// [`LoadError`] if there is no such kernel, or if it contains an instruction that is not
    /// supported. The error names the instruction and the line.
    pub fn kernel(&self, name: &str) -> Result<Kernel, LoadError> {
        let module = text::parse(&self.0.text).map_err(LoadError::Parse)?;
        let code = lower(&module, &self.0.variables, name).map_err(LoadError::Lower)?;
        Ok(Kernel { module: self.clone(), code: Arc::new(code), kept: Arc::default() })
    }
}

/// Returns the vector instructions with which kernels run on this processor: "AVX-512", "AVX2", or
/// "plain" for those that every processor of the target has.
pub fn vector_instructions() -> &'static str {
    Level::best().name()
}

/// A kernel that is ready to be launched.
///
/// It keeps the registers and the shared memory of one block, or of the blocks of one cluster, for
/// its next launch.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Module,
    code: Arc<Code>,
    /// The memory of a cluster of the last launch, for the next one.
    kept: Arc<Mutex<Option<Cluster>>>,
}

/// The size and the kind of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y and z. Without it, they are those of
    /// [`Kernel::cluster`], or each block is the only one of its cluster.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// True if each block may wait for each other one.
    pub is_cooperative: bool,
    /// The number of threads of the host that run blocks.
    pub threads: usize,
    /// The seed of the order in which warps run, and of moments at which the lanes of a warp stop
    /// running together. Without one, warps run in the order of their numbers, and lanes at the
    /// same place together. A seeded launch runs on one thread, and gives the same result each
    /// time.
    pub seed: Option<u64>,
    /// The checks that cost time. A launch with any of them runs on one thread.
    pub checks: Checks,
}

impl Config {
    /// Returns the configuration of `blocks` blocks of `threads` threads, in x, on one thread of
    /// the host.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        let checks = Checks { races: false, init: false, sync: false };
        Config {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            cluster: None,
            shared_bytes: 0,
            is_cooperative: false,
            threads: 1,
            seed: None,
            checks,
        }
    }
}

/// The threads and the flag of the program that a launch uses.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    /// Calls a function on as many threads as the number says, one of them the calling thread, and
    /// returns when all calls have returned. Fewer threads, or one after the other, are enough.
    pub run: &'a (dyn Fn(usize, &(dyn Fn() + Sync)) + Sync),
    /// Stops the launch soon after another thread sets it. The launch itself sets it at a fault.
    pub stop: &'a AtomicBool,
}

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("stop", self.stop).finish_non_exhaustive()
    }
}

/// Calls `work` on threads that start now.
fn on_new_threads(threads: usize, work: &(dyn Fn() + Sync)) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
}

/// The memory that a launch may touch, besides the variables of its module.
#[derive(Clone, Debug)]
pub enum Memory {
    /// These regions alone. Each other access is a fault.
    Regions(Vec<Region>),
    /// All memory of an address space. Each other access is a fault.
    Space(Arc<dyn AddressSpace>),
    /// Any memory of the process: bounds are not checked, and neither are writes to regions that
    /// are not writable. The [`Checks`] that the launch asks for know these regions, as they would
    /// with [`Memory::Regions`]. Of other memory, only races are reported, without a name.
    Unchecked(Vec<Region>),
}

/// The most threads of a block. CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability": the same for all GPUs.
const MOST_THREADS: u64 = 1024;

impl Kernel {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.code.name
    }

    /// Returns the bytes of its parameters together.
    pub fn param_bytes(&self) -> usize {
        self.code.param_bytes as usize
    }

    /// Returns the blocks of a cluster in x, y and z, if the text says how many
    /// (`.reqnctapercluster`).
    pub fn cluster(&self) -> Option<[u32; 3]> {
        self.code.cluster.size
    }

    /// Returns whether only a launch with clusters can run it (`.explicitcluster`).
    pub fn needs_clusters(&self) -> bool {
        self.code.cluster.is_explicit
    }

    /// Returns the blocks of a cluster in x, y and z of a launch with this grid, whose
    /// [`Config::cluster`] is `given`.
    ///
    /// # Errors
    /// If the clusters are not those that the kernel asks for, do not divide the grid in each
    /// direction or have more than 8 blocks. The text has both numbers and what to do.
    pub fn cluster_of(&self, grid: [u32; 3], given: Option<[u32; 3]>) -> Result<[u32; 3], String> {
        let name = self.name();
        if let (Some(needed), Some(given)) = (self.cluster(), given)
            && needed != given
        {
            return Err(format!(
                "{name} is for clusters of {needed:?} blocks, and the launch has clusters of {given:?}; leave them \
                 out, or change the code"
            ));
        }
        let Some(size) = given.or(self.cluster()) else {
            return match self.needs_clusters() {
                true => {
                    Err(format!("{name} needs a launch with clusters, and this one has none; set their size"))
                }
                false => Ok([1; 3]),
            };
        };
        let blocks = size.iter().fold(1, |blocks: u64, n| blocks.saturating_mul((*n).into()));
        let most = self.code.cluster.most.map_or(MOST_BLOCKS, |most| most.min(MOST_BLOCKS));
        if !(1..=u64::from(most)).contains(&blocks) {
            return Err(format!(
                "{name}: clusters of {size:?} have {blocks} blocks, and 1 to {most} are allowed; use smaller ones"
            ));
        }
        if !grid.iter().zip(&size).all(|(blocks, of_cluster)| blocks.is_multiple_of(*of_cluster)) {
            return Err(format!(
                "{name}: clusters of {size:?} blocks do not divide a grid of {grid:?}; use a grid that is a multiple \
                 of them in each direction"
            ));
        }
        Ok(size)
    }

    /// Returns the bytes of local memory of a thread.
    pub fn local_bytes(&self) -> u32 {
        self.code.local_bytes
    }

    /// Runs the kernel, and returns what it printed. Its threads are new threads of the host.
    ///
    /// `params` has the arguments as the kernel's parameters lie in memory: each at a multiple of
    /// its alignment.
    ///
    /// # Errors
    /// [`Fault`] with the first failure, and with what the kernel had printed. Blocks that had not
    /// started then do not run.
    ///
    /// # Panics
    /// If the grid or the block has no threads, if the block has more than 1 024 threads or 8 MiB
    /// of shared memory, if [`cluster_of`](Self::cluster_of) refuses the clusters, or if `params`
    /// is too short.
    ///
    /// # Safety
    /// The regions of `memory` are valid for reads, and for writes if they are writable, until the
    /// launch returns. Memory that its address space resolves is valid for reads and writes until
    /// then. Meanwhile, other code accesses all of it by atomic operations alone. With
    /// [`Memory::Unchecked`], this applies to whatever the kernel touches.
    pub unsafe fn launch(
        &self,
        config: &Config,
        params: &[u8],
        memory: Memory,
    ) -> Result<String, Box<Fault>> {
        let host = Host { run: &on_new_threads, stop: &AtomicBool::new(false) };
        // SAFETY: the caller keeps the same rules.
        unsafe { self.launch_on(host, config, params, memory) }
    }

    /// Runs the kernel like [`launch`](Self::launch), on threads of the caller.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch).
    ///
    /// # Panics
    /// If [`launch`](Self::launch) would.
    ///
    /// # Safety
    /// The rules are those of [`launch`](Self::launch).
    pub unsafe fn launch_on(
        &self,
        host: Host<'_>,
        config: &Config,
        params: &[u8],
        memory: Memory,
    ) -> Result<String, Box<Fault>> {
        let needed = self.param_bytes();
        assert!(
            params.len() >= needed,
            "{} has {needed} bytes of parameters, and {} are given",
            self.name(),
            params.len()
        );
        assert!(
            config.grid.iter().chain(&config.block).all(|n| *n > 0),
            "{}: grid {:?} and block {:?} need at least one thread in each direction",
            self.name(),
            config.grid,
            config.block
        );
        let threads = config.block.iter().fold(1, |threads: u64, n| threads.saturating_mul((*n).into()));
        assert!(
            threads <= MOST_THREADS,
            "{}: block {:?} has {threads} threads, and at most {MOST_THREADS} are allowed; use more and \
             smaller blocks",
            self.name(),
            config.block
        );
        let size = self.cluster_of(config.grid, config.cluster).unwrap_or_else(|why| panic!("{why}"));
        let clusters = Clusters { size, is_explicit: config.cluster.or(self.cluster()).is_some() };
        let shared_bytes = self.code.shared_bytes.saturating_add(config.shared_bytes);
        assert!(
            shared_bytes <= MOST_SHARED_BYTES,
            "{}: a block has {shared_bytes} bytes of shared memory, and at most {MOST_SHARED_BYTES} are allowed",
            self.name()
        );
        let mut words = vec![0u64; params.len().div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(params.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        let variables = self.module.0.variables.regions();
        let mut regions = match memory {
            Memory::Regions(mut regions) => {
                regions.extend(variables);
                Regions::new(regions)
            }
            Memory::Space(space) => Regions::of_space(variables.collect(), space),
            Memory::Unchecked(mut regions) => {
                regions.extend(variables);
                Regions::unchecked(regions)
            }
        };
        if config.is_cooperative && self.code.needs_workspace {
            regions.add_workspace();
        }
        let is_single = config.seed.is_some() || config.checks.any();
        let launch = Shared {
            code: &self.code,
            text: &self.module.0.text,
            grid: config.grid,
            block: config.block,
            clusters,
            params: &words,
            regions,
            checks: config.checks,
            shared_bytes,
            dynamic_shared_bytes: config.shared_bytes,
            printed: Mutex::default(),
            kept: (!is_single).then_some(&*self.kept),
            stop: host.stop,
        };
        let threads = if is_single { 1 } else { config.threads.max(1) };
        let grid = Grid::new(launch, config.is_cooperative, config.seed);
        if threads == 1 {
            grid.work();
        } else {
            (host.run)(threads, &|| grid.work());
        }
        grid.finish()
    }
}
