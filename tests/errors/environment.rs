//! The runtimes that read environment variables: those of `new` and `from_env`, the default one,
//! and no others.

use crate::support::says;
use crate::support::software::in_child;
use warpline::prelude::*;
use warpline::{Result, RuntimeBuilder};

fn order_and_devices(runtime: &Runtime) -> (OrderMode, usize) {
    (runtime.order(), runtime.devices().len())
}

#[test]
fn the_environment_sets_what_from_env_and_new_build_and_not_what_builder_builds() {
    in_child(&[("WARPLINE_ORDER", "warn"), ("WARPLINE_CPU_DEVICES", "3")], || {
        let asked_for = (OrderMode::Warn, 3);
        assert_eq!(order_and_devices(&Runtime::new().unwrap()), asked_for);
        assert_eq!(order_and_devices(Runtime::default_runtime().unwrap()), asked_for);
        let built = |builder: RuntimeBuilder| order_and_devices(&builder.build().unwrap());
        assert_eq!(built(RuntimeBuilder::from_env().unwrap()), asked_for);
        assert_eq!(built(RuntimeBuilder::from_env().unwrap().cpu_devices(2)), (OrderMode::Warn, 2));
        assert_eq!(built(Runtime::builder()), (OrderMode::Deny, 1));
    });
}

#[test]
fn a_value_that_is_not_understood_is_an_error_of_what_reads_it() {
    for (name, value, expected) in [
        ("WARPLINE_ORDER", "denny", "deny, warn, wait or off"),
        ("WARPLINE_SYNC", "on", "off, warn or error"),
        ("WARPLINE_CPU_DEVICES", "0", "a number of devices, 1 or more"),
        ("WARPLINE_COMPLETION", "nonsense", "word or event"),
        ("WARPLINE_WAKE_UP", "soon", "low-power, balanced or low-latency"),
    ] {
        in_child(&[(name, value), ("WARPLINE_TEST_SAYS", expected), ("WARPLINE_TEST_NAME", name)], || {
            let of = |name| std::env::var(name).unwrap();
            let (name, expected) = (of("WARPLINE_TEST_NAME"), of("WARPLINE_TEST_SAYS"));
            let text = format!("{name} is \"{}\"; expected {expected}", of(&name));
            let refused =
                |result: Result<()>| says(&result.unwrap_err(), ErrorKind::InvalidArgument, &[&text]);
            refused(Runtime::new().map(drop));
            refused(RuntimeBuilder::from_env().map(drop));
            refused(Device::best().map(drop));
            refused(Device::open("cpu").map(drop));
            Runtime::builder().build().unwrap();
        });
    }
}
