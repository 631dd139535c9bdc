//! Forms of instructions that compute each lane alone, and how they are run.

use crate::driver;
use crate::exact::Format;
use crate::program::{ISA, Program};
use warpline_ptx::Config;

/// The result of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Want {
    /// These bits.
    Bits(u64),
    /// A NaN of a format, whose bits the ISA leaves open.
    Nan(Format),
    /// Two halves, each as `Bits` or, for `None`, any NaN.
    Pair(Format, [Option<u64>; 2]),
    /// A number of a format next to another one: `relative` and `absolute` errors together.
    Near { format: Format, value: f64, relative: f64, absolute: f64 },
    /// Anything: the ISA leaves it open.
    Any,
}

impl Want {
    /// A number of a format, or for `None` any NaN.
    pub(crate) fn float(format: Format, bits: Option<u64>) -> Want {
        bits.map_or(Want::Nan(format), Want::Bits)
    }

    fn is(self, found: u64) -> bool {
        match self {
            Want::Bits(bits) => found == bits,
            Want::Nan(format) => format.is_nan(found),
            Want::Pair(format, halves) => halves.iter().enumerate().all(|(at, half)| {
                let found = found >> (16 * at) & 0xffff;
                half.map_or(format.is_nan(found), |half| half == found)
            }),
            Want::Near { format, value, relative, absolute } => {
                let found = format.read(found).to_f64();
                found == value || (found - value).abs() <= relative * value.abs() + absolute
            }
            Want::Any => true,
        }
    }
}

/// The result for the values of the sources.
type Expected = Box<dyn Fn(&[u64]) -> Want>;

/// A form of an instruction, with the values on which it is run.
pub(crate) struct Form {
    pub(crate) opcode: String,
    /// The registers of the result and of the sources: `b16`, `b32`, `b64` or `pred`. Of a result
    /// `pred|pred` bit 0 is the first one, and bit 1 the second.
    pub(crate) result: &'static str,
    pub(crate) sources: Vec<&'static str>,
    /// The text behind the sources.
    pub(crate) end: String,
    pub(crate) inputs: Vec<Vec<u64>>,
    pub(crate) want: Expected,
    pub(crate) isa: &'static str,
    /// Inputs for which a GPU was seen to give something else than the ISA states.
    pub(crate) deviates: fn(&[u64]) -> bool,
}

impl Form {
    /// A form on all combinations of the values of its sources.
    pub(crate) fn new(
        opcode: impl Into<String>,
        result: &'static str,
        sources: &[(&'static str, &[u64])],
        want: impl Fn(&[u64]) -> Want + 'static,
    ) -> Form {
        let mut inputs = vec![Vec::new()];
        for (_, values) in sources {
            let longer = inputs.iter().flat_map(|input: &Vec<u64>| {
                values.iter().map(move |value| input.iter().copied().chain([*value]).collect())
            });
            inputs = longer.collect();
        }
        let sources = sources.iter().map(|(register, _)| *register).collect();
        let (opcode, want) = (opcode.into(), Box::new(want));
        Form { opcode, result, sources, end: String::new(), inputs, want, isa: ISA, deviates: |_| false }
    }

    /// Says which later version of the ISA has added the form.
    pub(crate) fn added_by(mut self, isa: &'static str) -> Form {
        self.isa = isa;
        self
    }

    /// Adds an operand behind the sources.
    pub(crate) fn with(mut self, end: &str) -> Form {
        self.end = format!(", {end}");
        self
    }

    pub(crate) fn program(&self) -> Program {
        let (n, lanes) = (self.sources.len(), self.inputs.len().next_multiple_of(32));
        let mut body = format!("mad.wide.u32 %rd0, %i, {}, %in;\n", 8 * n.max(1));
        let mut operands = Vec::new();
        for (at, source) in self.sources.iter().enumerate() {
            let name = match *source {
                "b16" => format!("%h{at}"),
                "b32" => format!("%r{at}"),
                "b64" => format!("%rd{}", at + 1),
                _ => format!("%p{at}"),
            };
            let offset = 8 * at;
            if *source == "pred" {
                body += &format!("ld.global.u32 %r9, [%rd0+{offset}];\nsetp.ne.u32 {name}, %r9, 0;\n");
            } else {
                body += &format!("ld.global.{source} {name}, [%rd0+{offset}];\n");
            }
            operands.push(name);
        }
        if self.end.contains("%p9") {
            body += "setp.ne.u32 %p9, %i, %i;\n";
        }
        let result = match self.result {
            "b16" => "%h10",
            "b32" => "%r10",
            "b64" => "%rd10",
            "pred" => "%p10",
            _ => "%p10|%p11",
        };
        body += &format!("{} {result}, {}{};\n", self.opcode, operands.join(", "), self.end);
        body += "add.s64 %at, %at, %out;\n";
        body += &match self.result {
            "pred" => "selp.b32 %r11, 1, 0, %p10;\nst.global.u32 [%at], %r11;\n".to_owned(),
            "pred|pred" => "selp.b32 %r11, 1, 0, %p10;\nselp.b32 %r12, 2, 0, %p11;\n\
                            or.b32 %r11, %r11, %r12;\nst.global.u32 [%at], %r11;\n"
                .to_owned(),
            register => format!("st.global.{register} [%at], {result};\n"),
        };
        body += "ret;";
        let mut input: Vec<u64> = self.inputs.iter().flatten().copied().collect();
        input.resize(lanes * n, 0);
        let config = Config::linear((lanes / 32) as u32, 32);
        Program { isa: self.isa, input, len: lanes, config, ..Program::new(body) }
    }

    /// Says for which inputs a GPU was seen to give something else than the ISA states.
    pub(crate) fn deviating(mut self, deviates: fn(&[u64]) -> bool) -> Form {
        self.deviates = deviates;
        self
    }

    fn problem(&self) -> Option<String> {
        let program = self.program();
        let (found, split) = (program.run(), program.seeded(1).run());
        self.inputs.iter().zip(found).chain(self.inputs.iter().zip(split)).find_map(|(input, found)| {
            if driver::is_asked() && (self.deviates)(input) {
                return None;
            }
            let want = (self.want)(input);
            (!want.is(found)).then(|| {
                let input: Vec<String> = input.iter().map(|value| format!("{value:#x}")).collect();
                format!("{}{} of {}: {found:#x}; expected {want:x?}", self.opcode, self.end, input.join(", "))
            })
        })
    }
}

/// Runs forms, and reports the first wrong lane of each.
pub(crate) fn check(forms: Vec<Form>) {
    assert!(!forms.is_empty());
    let problems: Vec<String> = forms.iter().filter_map(Form::problem).collect();
    assert!(problems.is_empty(), "{} of {} forms:\n{}", problems.len(), forms.len(), problems.join("\n"));
}
