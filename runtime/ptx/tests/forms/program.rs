//! Runs a kernel whose body is written out.

use crate::driver;
use std::hash::{Hash, Hasher};
use warpline_ptx::{Config, Fault, Memory, Module, Region};

/// The directives at the head of the text, for the version of the ISA whose sections are cited.
pub(crate) const ISA: &str = ".version 8.5\n.target sm_90";
/// The directives for what later versions have added.
pub(crate) const ISA_8_6: &str = ".version 8.6\n.target sm_100";
pub(crate) const ISA_8_8: &str = ".version 8.8\n.target sm_100";

/// A kernel: what stands around its body, and its launch.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// [`ISA`], or a later one for what the GPU of a driver may not have. This runs on the
    /// executor alone.
    pub(crate) isa: &'static str,
    /// Variables and functions of the module.
    pub(crate) before: String,
    /// The kernel's body. On entry, `%i` is the number of the thread in the grid, `%in` the address
    /// of the input and `%out` that of the output.
    pub(crate) body: String,
    pub(crate) input: Vec<u64>,
    /// The number of words of 64 bits of the output.
    pub(crate) len: usize,
    pub(crate) config: Config,
}

impl Program {
    /// A program for one warp, with a word of output for each lane.
    pub(crate) fn new(body: impl Into<String>) -> Self {
        let config = Config::linear(1, 32);
        Program { isa: ISA, before: String::new(), body: body.into(), input: vec![0; 32], len: 32, config }
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "\
{}
.address_size 64
{}
.visible .entry main(.param .u64 main_in, .param .u64 main_out)
{{
.reg .pred %p<16>;
.reg .b16 %h<32>;
.reg .b32 %r<64>;
.reg .b64 %rd<64>;
.reg .f32 %f<32>;
.reg .f64 %fd<32>;
.reg .b32 %i, %zero;
.reg .b64 %in, %out, %at;
ld.param.u64 %in, [main_in];
ld.param.u64 %out, [main_out];
cvta.to.global.u64 %in, %in;
cvta.to.global.u64 %out, %out;
mov.u32 %i, %tid.x;
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %ntid.x;
mad.lo.u32 %i, %r0, %r1, %i;
mul.wide.u32 %at, %i, 8;
{}
}}
",
            self.isa, self.before, self.body
        )
    }

    /// The memory of a launch, and where its output begins. 16-byte vectors need more than the
    /// alignment of a word.
    fn memory(&self) -> (Vec<u128>, usize) {
        let out = self.input.len().div_ceil(2);
        let mut memory = vec![0u128; out + self.len.div_ceil(2)];
        for (at, word) in self.input.iter().enumerate() {
            memory[at / 2] |= u128::from(*word) << (64 * (at % 2));
        }
        (memory, out)
    }

    fn output(&self, memory: &[u128]) -> Vec<u64> {
        let read = |at: usize| (memory[at / 2] >> (64 * (at % 2))) as u64;
        (0..self.len).map(read).collect()
    }

    pub(crate) fn try_run(&self) -> Result<Vec<u64>, Box<Fault>> {
        let text = self.text();
        let module = Module::new(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let kernel = module.kernel("main").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let (mut memory, out) = self.memory();
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let region = Region {
            name: "memory".to_owned(),
            start,
            len_bytes: size_of_val(&memory[..]) as u64,
            is_writable: true,
            is_undefined: false,
            element_bytes: 8,
        };
        let params: Vec<u8> =
            [start, start + 16 * out as u64].iter().flat_map(|address| address.to_le_bytes()).collect();
        // SAFETY: launch needs a region that is valid and that nothing else accesses meanwhile: it
        // is the vector above.
        unsafe { kernel.launch(&self.config, &params, Memory::Regions(vec![region])) }?;
        Ok(self.output(&memory[out..]))
    }

    fn run_on_driver(&self) -> Result<Vec<u64>, String> {
        let (mut memory, out) = self.memory();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
        driver::launch(&self.text(), "main", &self.config, &mut [bytes], |addresses| {
            [0, 16 * out as u64].map(|offset| (addresses[0] + offset).to_le_bytes().into()).into()
        })?;
        Ok(self.output(&memory[out..]))
    }

    /// Writes the text to the folder that `ci/ptx-forms` names.
    fn keep_text(&self) {
        let Some(folder) = std::env::var_os("WARPLINE_PTX_TEXTS") else { return };
        let text = self.text();
        let mut hasher = std::hash::DefaultHasher::new();
        text.hash(&mut hasher);
        let file = std::path::Path::new(&folder).join(format!("{:016x}.ptx", hasher.finish()));
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    pub(crate) fn run(&self) -> Vec<u64> {
        self.keep_text();
        let result = if driver::is_asked() && self.isa == ISA {
            self.run_on_driver()
        } else {
            self.try_run().map_err(|fault| fault.to_string())
        };
        result.unwrap_or_else(|problem| panic!("{problem}\n{}", self.text()))
    }

    /// Returns the program with the order and the splits of a seed.
    pub(crate) fn seeded(&self, seed: u64) -> Program {
        Program { config: Config { seed: Some(seed), ..self.config }, ..self.clone() }
    }

    /// Runs the program, also with seeds, and compares each word of its output.
    pub(crate) fn gives(&self, expected: impl Fn(u64) -> u64) {
        for program in [self.clone(), self.seeded(1), self.seeded(2), self.seeded(3)] {
            let seed = program.config.seed;
            for (at, found) in program.run().into_iter().enumerate() {
                let expected = expected(at as u64);
                assert_eq!(
                    found, expected,
                    "word {at}: {found:#x}, not {expected:#x}, with seed {seed:?}, of\n{}",
                    self.body
                );
            }
        }
    }
}
