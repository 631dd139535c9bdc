//! The settings from the environment, read once, at the first call.

use crate::ending::LateCalls;
use crate::errors::Code;
use crate::faults::Failures;
pub(crate) use crate::faults::Planned;
use crate::visible::visible_devices;
use std::sync::OnceLock;
use std::time::Duration;

/// The settings. The crate's documentation describes each of them.
pub(crate) struct Plan {
    /// The number of devices, visible or not.
    pub(crate) gpus: u32,
    /// The physical ordinal of each visible device.
    pub(crate) devices: Vec<u32>,
    pub(crate) memory_bytes: u64,
    pub(crate) peer: bool,
    pub(crate) failures: Failures,
    /// The launches that poison their context, and the codes that they poison it with.
    pub(crate) poison_launch: Vec<(u64, Code)>,
    pub(crate) fault_seen_by_stream: bool,
    pub(crate) lose_write: Option<u64>,
    pub(crate) copy_delay: Option<Duration>,
    pub(crate) fault_delay: Duration,
    pub(crate) depth: Option<u64>,
    /// The number of hardware queues that the streams of a context share; 0 if each stream has its
    /// own.
    pub(crate) connections: usize,
    pub(crate) one_at_a_time: bool,
    pub(crate) alloc_waits: bool,
    pub(crate) graph_seed: u64,
    pub(crate) capture_strict: bool,
    pub(crate) memops: bool,
    pub(crate) register: bool,
    pub(crate) virtual_memory: bool,
    pub(crate) confidential: bool,
    /// True if kernels with a twin run their PTX too.
    pub(crate) kernels_ptx: bool,
    pub(crate) immediate: bool,
    pub(crate) counts: bool,
    pub(crate) late_calls: LateCalls,
    pub(crate) driver_version: i32,
    pub(crate) capability: (u32, u32),
    /// True if the library was loaded as a toolkit's stub.
    pub(crate) is_stub: bool,
}

static PLAN: OnceLock<Plan> = OnceLock::new();
static MISTAKES: OnceLock<Vec<String>> = OnceLock::new();

/// Returns the settings of this process.
#[inline]
pub(crate) fn get() -> &'static Plan {
    PLAN.get_or_init(|| {
        let (plan, mistakes) = Plan::read(&|name| std::env::var(name).ok());
        let _ = MISTAKES.set(mistakes);
        plan
    })
}

/// Returns a message for each malformed variable.
pub(crate) fn mistakes() -> &'static [String] {
    get();
    MISTAKES.get().map_or(&[], |mistakes| mistakes)
}

/// A reader of variables that collects a message for each malformed one.
struct Reader<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn read<T>(&mut self, name: &str, default: T, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(text) = (self.variable)(name) else { return default };
        parse(text.trim()).unwrap_or_else(|| {
            self.mistakes.push(format!("{name}={text} is malformed"));
            default
        })
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        self.read(name, default, |text| match text {
            "1" => Some(true),
            "0" | "" => Some(false),
            _ => None,
        })
    }
}

/// Parses `nth[:code]`.
fn poison(text: &str) -> Option<(u64, Code)> {
    let (nth, code) = text.split_once(':').unwrap_or((text, "700"));
    let nth = nth.parse().ok().filter(|nth| *nth > 0)?;
    Some((nth, Code(code.parse().ok().filter(|code| (1..=9999).contains(code))?)))
}

impl Plan {
    /// Returns the settings that the variables ask for, and a message for each malformed one.
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> (Plan, Vec<String>) {
        let mut reader = Reader { variable, mistakes: Vec::new() };
        let confidential = reader.flag("SOFTCUDA_CONFIDENTIAL", false);
        let count = reader.read("SOFTCUDA_DEVICES", 1, |text| text.parse().ok().filter(|count| *count <= 16));
        let plan = Plan {
            gpus: count,
            devices: visible_devices(variable("CUDA_VISIBLE_DEVICES").as_deref(), count),
            memory_bytes: reader.read("SOFTCUDA_MEMORY", 8 << 30, |text| {
                text.parse().ok().filter(|bytes| (1 << 16..=1 << 38).contains(bytes))
            }),
            peer: reader.flag("SOFTCUDA_PEER", true),
            failures: reader.read("SOFTCUDA_FAIL", Failures::default(), Failures::parse),
            poison_launch: reader
                .read("SOFTCUDA_POISON_LAUNCH", Vec::new(), |text| text.split(',').map(poison).collect()),
            fault_seen_by_stream: reader.read("SOFTCUDA_FAULT_SEEN", false, |text| match text {
                "stream" => Some(true),
                "context" | "" => Some(false),
                _ => None,
            }),
            lose_write: reader
                .read("SOFTCUDA_LOSE_WRITE", None, |text| text.parse().ok().filter(|nth| *nth > 0).map(Some)),
            copy_delay: reader
                .read("SOFTCUDA_COPY_DELAY_US", None, |text| {
                    text.parse().ok().map(|micros| Some(Duration::from_micros(micros)))
                })
                .filter(|delay| !delay.is_zero()),
            fault_delay: reader.read("SOFTCUDA_FAULT_DELAY_US", Duration::ZERO, |text| {
                text.parse().ok().map(Duration::from_micros)
            }),
            depth: reader
                .read("SOFTCUDA_DEPTH", None, |text| text.parse().ok().filter(|depth| *depth > 0).map(Some)),
            connections: reader.read("SOFTCUDA_CONNECTIONS", 0, |text| {
                text.parse().ok().filter(|count| (1..=32).contains(count))
            }),
            one_at_a_time: reader.flag("SOFTCUDA_ONE_AT_A_TIME", false),
            alloc_waits: reader.flag("SOFTCUDA_ALLOC_WAITS", false),
            graph_seed: reader.read("SOFTCUDA_GRAPH_SEED", 0, |text| text.parse().ok()),
            capture_strict: reader.flag("SOFTCUDA_CAPTURE_STRICT", false),
            memops: !reader.flag("SOFTCUDA_NO_MEMOPS", false),
            register: !reader.flag("SOFTCUDA_NO_REGISTER", false) && !confidential,
            virtual_memory: reader.flag("SOFTCUDA_VIRTUAL_MEMORY", true),
            confidential,
            kernels_ptx: reader.read("SOFTCUDA_KERNELS", false, |text| match text {
                "ptx" => Some(true),
                "twins" | "" => Some(false),
                _ => None,
            }),
            immediate: reader.flag("SOFTCUDA_IMMEDIATE", false),
            counts: reader.flag("SOFTCUDA_COUNTS", false),
            late_calls: reader.read("SOFTCUDA_LATE_CALLS", LateCalls::Count, LateCalls::parse),
            driver_version: reader.read("SOFTCUDA_DRIVER_VERSION", 12040, |text| {
                text.parse().ok().filter(|version| *version >= 1000)
            }),
            capability: reader.read("SOFTCUDA_CAPABILITY", (8, 0), |text| {
                let (major, minor) = text.split_once('.')?;
                Some((major.parse().ok()?, minor.parse().ok().filter(|minor| *minor < 10)?))
            }),
            is_stub: crate::library::is_stub(),
        };
        (plan, reader.mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(variables: &[(&str, &str)]) -> (Plan, Vec<String>) {
        Plan::read(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn without_variables_there_is_one_device_of_eight_gibibytes() {
        let (plan, mistakes) = plan(&[]);
        assert!(mistakes.is_empty());
        assert_eq!(plan.devices, [0]);
        assert_eq!(plan.memory_bytes, 8 << 30);
        assert!(
            plan.peer && plan.memops && plan.virtual_memory && !plan.immediate && plan.copy_delay.is_none()
        );
        assert!(plan.depth.is_none() && !plan.one_at_a_time);
    }

    #[test]
    fn what_is_malformed_is_named() {
        let (_, mistakes) = plan(&[
            ("SOFTCUDA_DEVICES", "two"),
            ("SOFTCUDA_PEER", "1"),
            ("SOFTCUDA_DEPTH", "0"),
            ("SOFTCUDA_POISON_LAUNCH", "0"),
            ("SOFTCUDA_CAPABILITY", "9"),
        ]);
        let variables = mistakes.iter().map(|mistake| mistake.split('=').next().unwrap());
        assert_eq!(
            variables.collect::<Vec<_>>(),
            ["SOFTCUDA_DEVICES", "SOFTCUDA_POISON_LAUNCH", "SOFTCUDA_DEPTH", "SOFTCUDA_CAPABILITY"]
        );
    }

    #[test]
    fn a_poisoned_launch_has_a_code() {
        let poisons = |text| plan(&[("SOFTCUDA_POISON_LAUNCH", text)]).0.poison_launch;
        assert_eq!(poisons("3"), [(3, Code(700))]);
        assert_eq!(poisons("3:719,5:9999"), [(3, Code(719)), (5, Code(9999))]);
        assert_eq!(plan(&[("SOFTCUDA_POISON_LAUNCH", "3:10000")]).1.len(), 1);
    }

    #[test]
    fn a_copy_delay_of_nothing_is_none() {
        assert_eq!(plan(&[("SOFTCUDA_COPY_DELAY_US", "0")]).0.copy_delay, None);
        assert_eq!(plan(&[("SOFTCUDA_COPY_DELAY_US", "7")]).0.copy_delay, Some(Duration::from_micros(7)));
    }
}
