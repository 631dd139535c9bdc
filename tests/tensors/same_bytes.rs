//! Programs in `deny` mode. The accepted ops give the same verdicts and the same bytes under every
//! interleaving, blocking or asynchronous.

use crate::support::programs::{Step, enqueue, first_value, program, streams_and_buffers};
use warpline::prelude::*;
use warpline::testing::for_each_seed;
use warpline_test_counts::count;

/// The outcome of a program: the verdict on each op, and the final contents of the buffers.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    accepted: Vec<bool>,
    bytes: Vec<Vec<u32>>,
}

/// Runs a program. The macro `$wait` waits for a `Pending`.
macro_rules! run {
    ($device:expr, $steps:expr, $wait:ident) => {{
        let device: &Device = $device;
        let (streams, mut buffers) = streams_and_buffers(device)?;
        for (at, buffer) in buffers.iter().enumerate() {
            $wait!(streams[0].fill(buffer, first_value(at)))?;
        }
        let mut accepted = Vec::new();
        let mut pending = Vec::new();
        let mut events = Vec::new();
        for &step in $steps {
            if let Step::Await(nth) = step
                && !pending.is_empty()
            {
                let op: Pending<()> = pending.swap_remove(nth % pending.len());
                $wait!(op)?;
            }
            let Some((written, op)) = enqueue(step, &streams, &mut buffers, &mut events)? else { continue };
            accepted.push(op.ticket().is_some());
            if op.ticket().is_some() {
                pending.push(op);
            } else {
                assert_eq!(op.queued().unwrap_err().kind(), ErrorKind::Unordered);
                buffers[written].accept_contents();
            }
        }
        $wait!(device.synchronize())?;
        let mut bytes = Vec::new();
        for buffer in &buffers {
            bytes.push($wait!(streams[0].read(buffer))?.iter().map(|x| x.to_bits()).collect());
        }
        Ok::<Outcome, Error>(Outcome { accepted, bytes })
    }};
}

macro_rules! asynchronous {
    ($pending:expr) => {
        $pending.await
    };
}

macro_rules! blocking {
    ($pending:expr) => {
        $pending.blocking_wait()
    };
}

fn run_blocking(device: &Device, steps: &[Step]) -> warpline::Result<Outcome> {
    run!(device, steps, blocking)
}

async fn run_async(device: Device, steps: &[Step]) -> warpline::Result<Outcome> {
    run!(&device, steps, asynchronous)
}

#[test]
fn what_deny_accepts_gives_the_same_bytes_for_every_seed_and_under_threads() {
    let (mut ops, mut refused) = (0, 0);
    for number in 0..60 {
        let steps = program(number);
        let (_runtime, device, []) = crate::support::streams([]);
        let expected = run_blocking(&device, &steps).unwrap();
        let again = futures::executor::block_on(run_async(device, &steps)).unwrap();
        assert_eq!(expected, again, "program {number}, blocking and asynchronous under threads: {steps:?}");
        ops += expected.accepted.len();
        refused += expected.accepted.iter().filter(|&&accepted| !accepted).count();
        for_each_seed(200 * number..200 * number + count(15, 200), |device| {
            let (steps, expected) = (&steps, &expected);
            async move {
                assert_eq!(&run_async(device, steps).await?, expected, "program {number}: {steps:?}");
                Ok(())
            }
        });
    }
    assert!(
        ops / 5 < refused && refused < ops / 5 * 4,
        "{refused} of {ops} refused: the programs say little"
    );
}
