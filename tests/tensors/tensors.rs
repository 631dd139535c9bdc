//! Tensors in cases that depend on the number of workers, or on when work finishes.

use crate::support::{block_on, refusal, says, streams};
use tokio_test::{assert_pending, assert_ready_ok, task};
use warpline::prelude::*;
use warpline::{Generator, Result};

/// Returns results whose bits could depend on the distribution of work: random numbers, large
/// products, sums.
fn numbers(workers: usize) -> Result<Vec<u32>> {
    let runtime = Runtime::builder().workers(workers).build()?;
    let device = runtime.device(DeviceId::Cpu(0))?;
    device.generator().manual_seed(11);
    let a = Tensor::randn([300, 400], &device).queued()?;
    let b = Tensor::rand([300, 400], &device).queued()?;
    let side = device.new_stream()?;
    side.wait_for(&b);
    // This op is on another stream, so that several workers have something to do.
    let sums = side.enter(|| b.sum_rows()).queued()?;
    let c = a.matmul(b.t()).queued()?;
    side.wait_for(&c);
    let columns = side.enter(|| c.sum_rows().to_vec::<f32>());
    let parts = [
        a.to_vec::<f32>().blocking_wait()?,
        c.to_vec::<f32>().blocking_wait()?,
        columns.blocking_wait()?,
        side.enter(|| sums.to_vec::<f32>()).blocking_wait()?,
        vec![c.sum().item().blocking_wait()?, c.mean().item().blocking_wait()?],
    ];
    Ok(parts.concat().into_iter().map(f32::to_bits).collect())
}

#[test]
fn the_same_seed_gives_the_same_bits_for_any_number_of_workers() {
    let one = numbers(1).unwrap();
    for workers in [1, 2, 4] {
        assert_eq!(numbers(workers).unwrap(), one, "{workers} workers");
    }
}

#[test]
fn large_kernels_have_the_same_bits_for_any_number_of_kernel_threads() {
    // Enough numbers for four threads, and enough multiplications for two.
    let results = |threads: Option<usize>| {
        let builder = Runtime::builder();
        let runtime = match threads {
            Some(threads) => builder.kernel_threads(threads),
            None => builder.schedule(Schedule::Seeded(1)),
        };
        let runtime = runtime.build().unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        device.generator().manual_seed(7);
        device.enter(|| {
            let numbers = Tensor::rand([1 << 21], &device).queued().unwrap();
            let product = Tensor::rand([1024, 256], &device).matmul(Tensor::rand([256, 1024], &device));
            let (numbers, product) = (numbers.to_vec::<f32>(), product.to_vec::<f32>());
            let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            block_on(async { (bits(numbers.await.unwrap()), bits(product.await.unwrap())) })
        })
    };
    let one = results(Some(1));
    for threads in [Some(2), Some(4), None] {
        assert!(results(threads) == one, "{threads:?} threads");
    }
}

#[test]
fn a_generator_moves_on_when_an_op_is_enqueued_and_not_when_it_runs() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let gate = stream.hold().unwrap();
    let (one, two) = stream.enter(|| (Tensor::randn([5], &device), Tensor::randn([5], &device)));
    device.generator().manual_seed(0);
    gate.open();
    let [one, two] = [one, two].map(|x| stream.enter(|| x.to_vec::<f32>()).blocking_wait().unwrap());
    let again = stream.enter(|| Tensor::randn([5], &device).to_vec::<f32>()).blocking_wait().unwrap();
    assert_eq!(one, again);
    assert_ne!(one, two);
}

#[test]
fn a_generator_asked_for_all_numbers_there_are_starts_again() {
    let generator = Generator::new(1);
    generator.take(5);
    generator.take(u64::MAX);
    assert_eq!(generator.take(1).offset, 8);
}

#[test]
fn a_view_of_what_is_in_flight_resolves_when_that_is_done() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let x = stream.enter(|| Tensor::ones([2, 3], &device)).blocking_wait().unwrap();
    let gate = stream.hold().unwrap();
    let (y, z) = stream.enter(|| (x.mul(2.0), x.mul(3.0)));
    let mut used_up = task::spawn(y.t());
    let mut looked_at = task::spawn((&z).reshape([6]));
    let mut contiguous = task::spawn((&z).contiguous());
    assert_pending!(used_up.poll());
    assert_pending!(looked_at.poll());
    assert_pending!(contiguous.poll());
    gate.open();
    let z = z.blocking_wait().unwrap();
    assert!(assert_ready_ok!(looked_at.poll()).shares_memory(&z));
    assert!(assert_ready_ok!(contiguous.poll()).shares_memory(&z));
    assert_eq!(block_on(used_up.into_inner()).unwrap().shape(), [3, 2]);
}

#[test]
fn queued_gives_the_tensor_before_it_is_there_and_awaiting_when_it_is() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let gate = stream.hold().unwrap();
    let x = stream.enter(|| Tensor::full([4], 2.0, &device)).queued().unwrap();
    let mut y = task::spawn(stream.enter(|| x.mul(&x)));
    assert_pending!(y.poll());
    gate.open();
    let y = block_on(y.into_inner()).unwrap();
    assert_eq!(stream.enter(|| y.to_vec::<f32>()).blocking_wait().unwrap(), [4.0; 4]);
}

#[test]
fn a_refused_view_of_what_is_in_flight_is_reported_by_its_stream() {
    let (_runtime, device, [stream]) = streams(["s"]);
    drop(stream.enter(|| Tensor::ones([2, 3], &device).reshape([5])));
    let error = stream.synchronize().blocking_wait().unwrap_err();
    says(&error, ErrorKind::Shape, &["reshape (tests/tensors/tensors.rs:", "do not fill the shape [5]"]);
}

#[test]
fn the_error_of_a_view_that_is_dropped_with_its_chain_is_returned_once() {
    let (_runtime, device, [stream, other]) = streams(["s", "other"]);
    let w = stream.enter(|| Tensor::ones([4], &device)).queued().unwrap();
    let chains: [fn(&Tensor); 3] = [
        |w| drop(w.add_(w.reshape([7]))),
        |w| drop(w.reshape([7])),
        |w| drop(w.t().reshape([7]).add(1.0).sum()),
    ];
    for chain in chains {
        stream.enter(|| chain(&w));
        let error = stream.synchronize().blocking_wait().unwrap_err();
        says(&error, ErrorKind::Shape, &["reshape (tests/tensors/tensors.rs:", "do not fill the shape [7]"]);
        stream.synchronize().blocking_wait().unwrap();
    }
    other.synchronize().blocking_wait().unwrap();
}

#[test]
fn the_error_of_an_op_in_place_is_not_lost_when_what_reads_its_tensor_is_dropped_too() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let w = stream.enter(|| Tensor::ones([4], &device)).queued().unwrap();
    stream.enter(|| drop(w.add_(w.reshape([7]))));
    stream.enter(|| drop(w.sum()));
    says(
        &stream.synchronize().blocking_wait().unwrap_err(),
        ErrorKind::Shape,
        &["reshape (tests/tensors/tensors.rs:"],
    );
    stream.synchronize().blocking_wait().unwrap();
}

#[test]
fn a_refusal_that_no_stream_knows_of_is_reported_by_that_of_the_op_it_went_into() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let w = stream.enter(|| Tensor::ones([4], &device)).queued().unwrap();
    let elsewhere = || {
        Pending::<Tensor>::refused(Error::new(ErrorKind::InvalidArgument, "elsewhere: no tensor; make one"))
    };
    let chains: [&dyn Fn(); 3] = [&|| drop(w.add(elsewhere())), &|| drop(w.mul_(elsewhere())), &|| {
        drop(w.sgd_(elsewhere(), &w, 0.1, 0.9))
    }];
    for chain in chains {
        stream.enter(chain);
        says(&stream.synchronize().blocking_wait().unwrap_err(), ErrorKind::InvalidArgument, &["elsewhere"]);
        stream.synchronize().blocking_wait().unwrap();
    }
}

#[test]
fn of_several_refused_operands_of_a_step_none_is_lost() {
    let (_runtime, device, [one, two]) = streams(["one", "two"]);
    let w = one.enter(|| Tensor::ones([4], &device)).queued().unwrap();
    let (grad, velocity) = (one.enter(|| w.reshape([5])), two.enter(|| w.reshape([6])));
    says(&refusal(one.enter(|| w.sgd_(grad, velocity, 0.1, 0.9))), ErrorKind::Shape, &["[5]"]);
    says(&two.synchronize().blocking_wait().unwrap_err(), ErrorKind::Shape, &["[6]"]);
    one.synchronize().blocking_wait().unwrap();
}

#[test]
fn an_error_that_went_into_an_op_and_was_awaited_there_is_not_reported_again() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let x = stream.enter(|| Tensor::ones([2, 3], &device)).queued().unwrap();
    let bad = stream.enter(|| x.matmul(&x));
    refusal(stream.enter(|| (&bad).relu().sum()));
    drop(bad);
    stream.synchronize().blocking_wait().unwrap();
}

#[test]
fn tensors_and_generators_can_be_used_from_any_thread() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Tensor>();
    shared::<Generator>();
    fn sent<T: Send + 'static>() {}
    sent::<Pending<Tensor>>();
}

/// The columns of one image take more than half of the memory that a convolution uses at a time.
#[test]
fn a_convolution_of_many_large_images_is_made_in_parts() {
    let (_runtime, device, [stream]) = streams(["s"]);
    stream.enter(|| {
        let [n, c, h, w] = [2, 16, 256, 256];
        let values: Vec<f32> = (0..n * c * h * w).map(|i| (i % 251) as f32 / 64.0).collect();
        let images = Tensor::from_host(&values, [n, c, h, w], &device).queued().unwrap();
        let weights: Vec<f32> = (0..c * 9).map(|i| (i % 7) as f32 - 3.0).collect();
        let weight = Tensor::from_host(&weights, [1, c, 3, 3], &device).queued().unwrap();
        let bias = Tensor::full([1], 0.25, &device).queued().unwrap();
        let of = |x: Pending<Tensor>| {
            x.conv2d(&weight, Some(&bias), [1, 1], [1, 1]).to_vec::<f32>().blocking_wait().unwrap()
        };
        let all = of(images.reshape([n, c, h, w]));
        assert_eq!(all.len(), n * h * w);
        for (i, one) in all.chunks(h * w).enumerate() {
            assert_eq!(one, of(images.narrow(0, i, 1)), "image {i}");
        }
    });
}
