//! Tensors: their properties, chains of ops, and refusals.

use crate::support::says;
use crate::{contract, refused};
use warpline::prelude::*;
use warpline::{Generator, Shape};

async fn tensor(values: &[f32], shape: impl Into<Shape>, device: &Device) -> warpline::Result<Tensor> {
    Tensor::from_host(values, shape, device).await
}

/// Returns the location of the caller, `offset` lines further down, as errors write it.
#[track_caller]
fn here(offset: u32) -> String {
    let location = std::panic::Location::caller();
    format!("({}:{})", location.file(), location.line() + offset)
}

contract! {
    async fn ops_chain_without_waiting_and_without_a_question_mark([device]) {
        let x = Tensor::new([[1.0, -2.0], [3.0, -4.0]], &device);
        let w = Tensor::full([2, 3], 2.0, &device);
        let b = Tensor::new([0.5, 1.0, 100.0], &device).queued()?;
        let y = (&x).matmul(&w).add(&b).relu();
        let total: f32 = (&y).sum().item().await?;
        let y = y.queued()?;
        assert_eq!((y.shape(), y.dtype(), y.len()), (&[2, 3][..], DType::F32, 6));
        assert_eq!(y.to_vec::<f32>().await?, [0.0, 0.0, 98.0, 0.0, 0.0, 98.0]);
        assert_eq!(total, 196.0);
        let x = x.await?;
        assert_eq!(x.matmul(w).sum_rows().to_vec::<f32>().await?, [-4.0; 3]);
    }

    async fn a_step_of_a_perceptron_goes_down_the_gradient([device]) {
        let generator = Generator::new(3);
        let x = Tensor::empty([32, 8], &device).normal_from_(&generator, 0.0, 1.0).queued()?;
        let labels = Tensor::from_host(&(0..32).map(|i| i % 4).collect::<Vec<i64>>(), [32], &device).queued()?;
        let w1 = Tensor::empty([8, 16], &device).normal_from_(&generator, 0.0, 0.3).queued()?;
        let w2 = Tensor::empty([16, 4], &device).normal_from_(&generator, 0.0, 0.3).queued()?;
        let (b1, b2) = (Tensor::zeros([16], &device).queued()?, Tensor::zeros([4], &device).queued()?);
        let params = [&w1, &b1, &w2, &b2];
        let mut velocities = Vec::new();
        for param in params {
            velocities.push(Tensor::zeros(param.shape(), &device).queued()?);
        }
        let mut losses = Vec::new();
        for _ in 0..100 {
            let h = x.matmul(&w1).add(&b1).relu().queued()?;
            let (loss, dy) = h.matmul(&w2).add(&b2).cross_entropy(&labels).queued()?;
            let dh = dy.matmul(w2.t()).relu_backward(&h).queued()?;
            let grads = [x.t().matmul(&dh), dh.sum_rows(), h.t().matmul(&dy), dy.sum_rows()];
            for ((param, grad), velocity) in params.iter().zip(grads).zip(&velocities) {
                param.sgd_(grad, velocity, 0.1, 0.9).queued()?;
            }
            losses.push(loss);
        }
        let (first, last): (f32, f32) = (losses[0].item().await?, losses[99].item().await?);
        assert!(first > 1.0 && last < 0.1, "{first} {last}");
        let right: i64 = x.matmul(&w1).add(&b1).relu().matmul(&w2).add(&b2).argmax().count_equal(&labels).item().await?;
        assert_eq!(right, 32);
    }

    async fn an_op_on_a_refused_input_carries_the_same_error([device]) {
        let x = tensor(&[1.0, 2.0], [1, 2], &device).await?;
        let bad = x.matmul(&x);
        let text = bad.as_operand().unwrap_err().error().to_string();
        let through_a_reference = (&bad).relu();
        let as_an_operand = x.add(&bad);
        let chained = bad.t().mul(2.0).sum().item::<f32>();
        for error in [refused(through_a_reference).await, refused(as_an_operand).await, refused(chained).await] {
            says(&error, ErrorKind::Shape, &[&text]);
        }
        device.synchronize().await?;
    }

    async fn a_chain_that_is_dropped_with_its_error_is_reported([device]) {
        let x = tensor(&[1.0, 2.0], [1, 2], &device).await?;
        drop(x.matmul(&x).relu().sum());
        let stream = device.default_stream()?;
        says(&stream.synchronize().await.unwrap_err(), ErrorKind::Shape, &["matmul on stream \"default\""]);
        stream.synchronize().await?;
    }

    async fn shapes_that_do_not_fit_are_refused_with_both([device]) {
        let x = tensor(&[0.0; 6], [2, 3], &device).await?;
        let row = tensor(&[0.0; 2], [2], &device).await?;
        let cube = tensor(&[0.0; 8], [2, 2, 2], &device).await?;
        let labels = Tensor::full([3], 0, &device).await?;
        let empty = Tensor::empty([2, 0], &device).await?;
        let line = here(0);
        for (pending, op, why) in [
            (x.matmul(&x), "matmul", "the shapes are [2, 3] and [2, 3], with 3 columns on the left and \
                2 rows on the right; transpose one, or pass matrices where the two agree"),
            (x.matmul(&row), "matmul", "a tensor has 1 dimensions (shape [2]), and the op takes a \
                matrix; reshape it to 2 dimensions"),
            (x.add(&row), "add", "the shapes are [2, 3] and [2]; counted from the last dimension, sizes \
                must be equal, or one of them 1"),
            (row.mul(&x), "mul", "the shapes are [2] and [2, 3]; counted from"),
            (row.add_(&x), "add_", "a tensor of shape [2, 3] cannot be written into one of shape [2]; counted \
                from the last dimension, its sizes must be equal to those, or 1"),
            (row.narrow(0, 0, 1).add_(&row), "add_", "a tensor of shape [2] cannot be written into one of shape [1]"),
            (x.relu_backward(&row), "relu_backward", "the shapes are [2, 3] and [2]; pass tensors \
                of the same shape"),
            (x.linear(&x, row.narrow(0, 0, 1)), "linear", "the input has shape [2, 3], the weight \
                [2, 3] and the bias [1]; for inputs [m, k] pass a weight [n, k] and a bias [n]"),
            (cube.sum_rows(), "sum_rows", "a tensor has 3 dimensions (shape [2, 2, 2]), and the op \
                takes a matrix"),
            (empty.argmax(), "argmax", "the last dimension of shape [2, 0] is 0, so there is no \
                largest element; pass at least 1"),
        ] {
            let error = refused(pending).await;
            says(&error, ErrorKind::Shape, &[&format!("{op} on stream \"default\" ("), why]);
            assert!(error.to_string().contains("tests/contract/tensors.rs:"), "{error}, {line}");
        }
        let error = refused(x.cross_entropy(&labels)).await;
        says(&error, ErrorKind::Shape, &["cross_entropy on stream", "the logits have shape [2, 3] and \
            the labels [3]; for 2 rows of logits pass labels of shape [2]"]);
        says(&refused(x.item::<f32>()).await, ErrorKind::Shape, &["item on", "6 elements (shape \
            [2, 3]), and item reads exactly 1; use to_vec"]);
        says(&refused(Tensor::from_host(&[1.0], [2], &device)).await, ErrorKind::Shape, &["from_host on", "1 elements do not fill the shape [2]"]);
        says(&refused(Tensor::empty([usize::MAX, 2], &device)).await, ErrorKind::OutOfMemory, &["more elements than a usize can count"]);
        says(&refused(x.reshape([7])).await, ErrorKind::Shape, &["reshape (", "6 elements (shape [2, 3]) do not fill the shape [7]"]);
        says(&refused(x.narrow(0, 1, 2)).await, ErrorKind::Shape, &["narrow (", "2 rows from row 1 are not within 0..2"]);
        says(&refused(x.narrow(1, 0, 1)).await, ErrorKind::Shape, &["dimension 1 of shape [2, 3] \
            cannot be narrowed, because only parts along dimension 0"]);
        says(&refused(cube.t()).await, ErrorKind::Shape, &["t (", "3 dimensions (shape [2, 2, \
            2]), and t takes at most 2; reshape"]);
    }

    async fn pinned_memory_becomes_a_tensor_and_comes_back([device]) {
        let (copy, compute) = (device.new_stream()?, device.new_stream()?);
        let mut host = device.pinned::<f32>(6).await?;
        host.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let address = host.as_ptr();
        let (x, sent) = Tensor::from_pinned(host, [2, 3], &copy)?;
        assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::F32));
        let unordered = refused(compute.enter(|| x.to_pinned::<f32>())).await;
        says(&unordered, ErrorKind::Unordered, &["to_pinned on", "that from_pinned on", "call", "wait_stream"]);
        compute.wait_stream(&copy);
        let doubled = compute.enter(|| x.mul(2.0).to_pinned::<f32>()).await?;
        assert_eq!(*doubled, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        let host = sent.await?;
        assert_eq!((host.as_ptr(), host.len()), (address, 6));

        let labels = Tensor::full([2], 7i64, &device);
        assert_eq!(*labels.to_pinned::<i64>().await?, [7, 7]);
        says(&refused(x.t().to_pinned::<f32>()).await, ErrorKind::Shape, &["to_pinned on", "transposed view"]);
        says(&refused(x.to_pinned::<i64>()).await, ErrorKind::DTypeMismatch, &["to_pinned on", "is f32"]);
    }

    async fn a_refused_pinned_buffer_is_inside_the_error([device]) {
        let stream = device.stream().label("s").build()?;
        let host = device.pinned::<f32>(6).await?;
        let address = host.as_ptr();
        let line = here(1);
        let error = Tensor::from_pinned(host, [2, 2], &stream).unwrap_err();
        let text = format!("from_pinned on stream \"s\" {line}: 6 elements do not fill the shape \
            [2, 2]");
        says(&error, ErrorKind::Shape, &[&text]);
        assert_eq!(Pinned::<f32>::from_error(error).map(|host| host.as_ptr()), Some(address));
    }

    async fn types_that_do_not_fit_are_refused_with_both([device]) {
        let x = tensor(&[1.0], [1], &device).await?;
        let n = Tensor::full([1], 7, &device).await?;
        let truth = Tensor::full([1], true, &device).await?;
        let x = x.reshape([1, 1]).await?;
        for (pending, text) in [
            (n.relu(), "relu on stream \"default\" ("),
            (
                x.matmul(n.reshape([1, 1])),
                "a tensor of shape [1, 1] is i64, and the op takes f32; convert it with .to(DType::F32)",
            ),
            (n.mul_(&x), "the result is f32, which cannot be written into a tensor of i64; use mul, which \
                returns a new tensor, or convert the operand"),
            (n.div_(2), "the result is f32, which cannot be written into a tensor of i64; use div"),
            (truth.add_(1), "the result is i64, which cannot be written into a tensor of bool"),
            (truth.sub(&truth), "a difference of bool is not defined; convert the tensor with .to(DType::I64)"),
            (n.sub(true), "a difference of bool is not defined"),
            (truth.neg(), "the sign of bool is not defined"),
            (n.fill_(2.5), "2.5 is not an i64, whose values go from -9223372036854775808 to"),
            (n.to(DType::U8).fill_(256), "256 is not an u8, whose values go from 0 to 255; pass an integer in that range"),
            (n.normal_(0.0, 1.0), "the tensor is i64, and random numbers are floating-point"),
        ] {
            says(&refused(pending).await, ErrorKind::DTypeMismatch, &[text]);
        }
        let asked = |op| format!("the tensor is i64, and f32 was requested; call {op}::<i64>()");
        says(&refused(n.item::<f32>()).await, ErrorKind::DTypeMismatch, &["item on", &asked("item")]);
        says(&refused(n.to_vec::<f32>()).await, ErrorKind::DTypeMismatch, &["to_vec on", &asked("to_vec")]);
        says(&n.buffer::<f32>().unwrap_err(), ErrorKind::DTypeMismatch, &["buffer (tests", &asked("buffer")]);
        x.zero_().await?;
        // The remedy that these errors name.
        assert_eq!(x.matmul(n.to(DType::F32).reshape([1, 1]).add(1.0)).to_vec::<f32>().await?, [0.0]);
        Tensor::ones([1, 1], &device).copy_(&x).await?;
    }

    async fn devices_that_do_not_fit_are_refused_with_both([one, two]) {
        let (x, y) = (tensor(&[1.0], [1, 1], &one).await?, tensor(&[1.0], [1, 1], &two).await?);
        let text = format!("the stream is on {one} and an operand is on {two}; move a tensor with to, or a buffer with copy_buffer_peer");
        for (op, pending) in [("add", x.add(&y)), ("matmul", x.matmul(&y)), ("mul_", x.mul_(&y))] {
            says(&refused(pending).await, ErrorKind::DeviceMismatch, &[&format!("{op} on stream \"default\" ("), &text]);
        }
        x.zero_().await?;
    }

    async fn operators_are_the_ops_of_their_names([device]) {
        let x = tensor(&[1.0, -2.0, 0.0], [3], &device).await?;
        let y = tensor(&[10.0, 20.0, 30.0], [3], &device).await?;
        let values = [
            &x + &y,
            &x - 1.0,
            &x * 3.0,
            -&x,
            x.clone() + &y,
            (&x + &y) * &x - 1.0, // on `Pending`s
            -(&x * 2.0),
        ];
        let mut read = Vec::new();
        for value in values {
            read.push(value.to_vec::<f32>().await?);
        }
        assert_eq!(read, [
            [11.0, 18.0, 30.0],
            [0.0, -3.0, -1.0],
            [3.0, -6.0, 0.0],
            [-1.0, 2.0, 0.0],
            [11.0, 18.0, 30.0],
            [10.0, -37.0, -1.0],
            [-2.0, 4.0, 0.0],
        ]);
        assert!((-&x).to_vec::<f32>().await?[2].is_sign_negative(), "minus zero");
        // A reference keeps a `Pending`.
        let sum = &x + &y;
        let (twice, less) = (&sum + &sum, &sum - &x);
        assert_eq!((&sum * 1.0).to_vec::<f32>().await?, [11.0, 18.0, 30.0]);
        assert_eq!(twice.to_vec::<f32>().await?, [22.0, 36.0, 60.0]);
        assert_eq!(less.to_vec::<f32>().await?, [10.0, 20.0, 30.0]);
        assert_eq!((-&sum).to_vec::<f32>().await?, [-11.0, -18.0, -30.0]);
        let n = Tensor::from_host(&[5i64, i64::MIN], [2], &device).queued()?;
        assert_eq!((&y / &sum).to_vec::<f32>().await?, [10.0 / 11.0, 20.0 / 18.0, 1.0]);
        assert_eq!(((1.0 - &x) / 2.0).to_vec::<f32>().await?, [0.0, 1.5, 0.5]);
        assert_eq!((2 / &y).to_vec::<f32>().await?, [0.2, 0.1, 2.0 / 30.0]);
        assert_eq!((-(&n + 1)).to_vec::<i64>().await?, [-6, i64::MAX]);
        assert_eq!((-&n).to_vec::<i64>().await?, [-5, i64::MIN]);
        // Errors name the line of the operator.
        let line = here(1);
        let error = refused(&x + &n).await;
        says(&error, ErrorKind::Shape, &[&format!("add on stream \"default\" {line}")]);
        let line = here(1);
        let error = refused((&x * 2.0) - &n).await;
        says(&error, ErrorKind::Shape, &[&format!("sub on stream \"default\" {line}")]);
    }

    async fn to_moves_a_tensor_between_devices([one, two]) {
        crate::transfers::moves(&one, &two).await?;
    }

    async fn to_its_own_device_is_the_tensor_itself([one, two]) {
        let x = tensor(&[1.0, 2.0], [2], &one).await?;
        let (issued, allocated) = (one.default_stream()?.issued(), one.memory_stats().allocated_bytes);
        let same = x.to(&one).await?;
        assert!(same.shares_memory(&x));
        assert_eq!((one.default_stream()?.issued(), one.memory_stats().allocated_bytes), (issued, allocated));
        assert!(!x.to(&two).await?.shares_memory(&x));
    }

    async fn copies_between_devices_order_themselves_on_the_current_streams([one, two]) {
        crate::transfers::order_themselves(&one, &two).await?;
    }

    async fn copies_between_devices_do_not_order_other_streams([one, two]) {
        crate::transfers::do_not_order_others(&one, &two).await?;
    }

    async fn a_copy_to_another_device_says_what_does_not_fit([one, two]) {
        crate::transfers::say_what_does_not_fit(&one, &two).await?;
    }

    async fn a_transposed_view_goes_into_matmul_as_it_is_and_nowhere_else([device]) {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], &device).await?;
        let t = x.t().await?;
        assert!(t.shares_memory(&x) && !t.is_contiguous() && t.shape() == [3, 2]);
        assert_eq!(x.matmul(&t).to_vec::<f32>().await?, [14.0, 32.0, 32.0, 77.0]);
        assert_eq!(t.matmul(&x).to_vec::<f32>().await?, [17.0, 22.0, 27.0, 22.0, 29.0, 36.0, 27.0, 36.0, 45.0]);
        let advice = "the tensor is a transposed view of shape [3, 2], and only matmul and linear \
            take transposed views; call .contiguous() on it, which copies";
        for pending in [
            t.relu(), t.add(1.0), x.add(t.narrow(0, 0, 1)), t.sum(), t.mean(), t.sum_rows(), t.argmax(), t.reshape([6]),
            t.fill_(1.0), t.normal_(0.0, 1.0), t.relu_backward(&t), t.sgd_(&t, &t, 0.1, 0.9), t.copy_(&t),
        ] {
            says(&refused(pending).await, ErrorKind::Shape, &[advice]);
        }
        says(&refused(t.to_vec::<f32>()).await, ErrorKind::Shape, &["to_vec on", advice]);
        says(&t.buffer::<f32>().unwrap_err(), ErrorKind::Shape, &[advice]);
        let copy = t.contiguous().await?;
        assert!(!copy.shares_memory(&x) && copy.is_contiguous());
        assert_eq!(copy.to_vec::<f32>().await?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert!(x.contiguous().await?.shares_memory(&x) && t.t().await?.is_contiguous());
    }

    async fn views_share_memory([device]) {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2], &device).await?;
        let rows = x.narrow(0, 1, 2).await?;
        assert!(rows.shares_memory(&x) && rows.shape() == [2, 2]);
        rows.fill_(9.0).queued()?;
        assert_eq!(x.to_vec::<f32>().await?, [1.0, 2.0, 9.0, 9.0, 9.0, 9.0]);
        let flat = x.relu().reshape([6]).narrow(0, 0, 3).await?;
        assert_eq!(flat.to_vec::<f32>().await?, [1.0, 2.0, 9.0]);
        let buffer = x.buffer::<f32>()?.clone();
        let same = Tensor::from_buffer(buffer.clone(), [2, 3])?;
        assert!(same.shares_memory(&x) && !same.shares_memory(&Tensor::zeros([1], &device).await?));
        says(&Tensor::from_buffer(buffer.clone(), [7]).unwrap_err(), ErrorKind::Shape, &["6 elements do not fill the shape [7]"]);
        let columns = buffer.as_matrix(3)?.columns(..1)?;
        says(&Tensor::from_buffer(columns, [3]).unwrap_err(), ErrorKind::Shape, &["strided view of 3 rows of 1 elements, 2 apart"]);
        assert_eq!(x.narrow(0, 3, 0).await?.shape(), [0, 2]);
    }

    async fn ops_in_place_write_and_return_their_tensor([device]) {
        let x = Tensor::zeros([2, 2], &device).queued()?;
        let y = x.add_(1.0).mul_(3.0).sub_(&tensor(&[1.0, 2.0], [2], &device).await?).queued()?;
        assert!(y.shares_memory(&x));
        assert_eq!(x.to_vec::<f32>().await?, [2.0, 1.0, 2.0, 1.0]);
        assert_eq!(x.add_(&x).mul(&x).to_vec::<f32>().await?, [16.0, 4.0, 16.0, 4.0]);
        assert_eq!(x.zero_().to_vec::<f32>().await?, [0.0; 4]);
        let n = Tensor::full([3], 7, &device).sub_(10).mul(Tensor::full([1], 2, &device)).queued()?;
        assert_eq!(n.to_vec::<i64>().await?, [-6; 3]);
        assert_eq!(n.zero_().to_vec::<i64>().await?, [0; 3]);
    }

    async fn wrong_arguments_leave_what_was_there_as_it_was([device]) {
        let x = Tensor::ones([2, 2], &device).queued()?;
        let fails: [fn(&Tensor, &Device) -> Pending<Tensor>; 4] = [
            |x, device| x.add_(Tensor::zeros([3], device)),
            |x, device| x.copy_(Tensor::zeros([3], device)),
            |x, device| x.copy_(Tensor::ones([2, 2], device)).add_(Tensor::full([2, 2, 2], 1, device)),
            |x, _| x.sgd_(x, x, 0.1, 0.9),
        ];
        for fail in fails {
            drop(fail(&x, &device));
            assert_eq!(x.sum().item::<f32>().await?, 4.0);
            refused(device.default_stream()?.synchronize()).await;
        }
    }

    async fn a_refused_op_in_place_marks_what_it_would_have_written_until_it_is_looked_at([device]) {
        let side = device.stream().label("side").build()?;
        let x = Tensor::zeros([2, 2], &device).queued()?;
        let marked = async |x: &Tensor| {
            let error = refused(side.enter(|| x.sum())).await;
            assert!(error.is_inherited(), "{error}");
            let line = ["sum on stream \"side\" (tests/contract/tensors.rs:", "add_ on stream \"side\" (tests/contract/tensors.rs:"];
            says(&error, ErrorKind::Unordered, &line);
            x.sum().item::<f32>().await
        };
        let add = side.enter(|| x.add_(1.0));
        side.wait_stream(&device.default_stream()?);
        assert_eq!(marked(&x).await?, 0.0, "the default stream carries no mark");
        refused(add).await;
        assert_eq!(side.enter(|| x.sum().item::<f32>()).await?, 0.0, "somebody has looked at the error");

        x.fill_(0.0).queued()?;
        drop(side.enter(|| x.add_(1.0)));
        side.wait_stream(&device.default_stream()?);
        assert_eq!(marked(&x).await?, 0.0);
        x.accept_contents();
        assert_eq!(side.enter(|| x.sum().item::<f32>()).await?, 0.0);
        refused(side.synchronize()).await;
    }

    async fn an_op_in_place_with_a_refused_operand_marks_what_it_would_have_written([device]) {
        let side = device.new_stream()?;
        let w = Tensor::ones([4], &device).queued()?;
        let v = Tensor::ones([4], &device).queued()?;
        let bad = side.enter(|| w.add(1.0));
        let text = bad.as_operand().unwrap_err().error().to_string();
        let marked = async |tensor: &Tensor| {
            let error = refused(tensor.to_vec::<f32>()).await;
            assert!(error.is_inherited(), "{error}");
            says(&error, ErrorKind::Unordered, &["to_vec on stream \"default\"", &text]);
            tensor.fill_(1.0).await
        };
        type InPlace = fn(&Tensor, &Pending<Tensor>) -> Pending<Tensor>;
        let ops: [InPlace; 4] =
            [|w, bad| w.add_(bad), |w, bad| w.mul_(bad), |w, bad| w.copy_(bad), |w, bad| w.sgd_(w, bad, 0.1, 0.9)];
        for op in ops {
            drop(op(&w, &bad));
            marked(&w).await?;
            says(&refused(op(&w, &bad)).await, ErrorKind::Unordered, &[&text]);
            assert_eq!(w.to_vec::<f32>().await?, [1.0; 4], "looking at the error of the op itself ends its mark");
        }
        drop(w.sgd_(&bad, &v, 0.1, 0.9));
        marked(&w).await?;
        marked(&v).await?;
        drop((&bad).sgd_(&bad, &v, 0.1, 0.9));
        marked(&v).await?;
        says(&refused((&bad).sgd_(&w, &bad, 0.1, 0.9)).await, ErrorKind::Unordered, &[&text]);
        refused(w.add(&bad)).await;
        assert_eq!(w.to_vec::<f32>().await?, [1.0; 4], "not in place");
        drop(w.add_(&bad));
        refused(bad).await;
        marked(&w).await?;
    }

    async fn a_copy_of_a_tensor_onto_itself_does_nothing([device]) {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], [4], &device).await?;
        assert!(x.copy_(&x).await?.shares_memory(&x));
        assert_eq!(x.narrow(0, 1, 2).copy_(x.narrow(0, 1, 2)).to_vec::<f32>().await?, [2.0, 3.0]);
        let apart = refused(x.narrow(0, 0, 2).copy_(x.narrow(0, 1, 2))).await;
        says(&apart, ErrorKind::Overlap, &["copy_ on stream \"default\" ("]);
    }

    async fn beside_a_size_of_0_the_others_may_be_anything([device]) {
        let none = Tensor::empty([0, 1 << 40, 1 << 40], &device).queued()?;
        assert_eq!(none.narrow(0, 0, 0).await?.shape(), none.shape());
        let rows = Tensor::empty([1 << 40, 0], &device).queued()?;
        assert_eq!(rows.narrow(0, 7, 1 << 30).await?.shape(), [1 << 30, 0]);
        assert_eq!(rows.t().contiguous().to_vec::<f32>().await?, [0.0; 0]);
    }

    async fn an_op_is_called_by_its_own_name([device]) {
        let side = device.stream().label("side").build()?;
        let x = Tensor::from_host(&[1.0_f32], [1], &device).queued()?;
        let y = Tensor::zeros([1], &device).queued()?;
        let (to_vec, item) = side.enter(|| (x.to_vec::<f32>(), x.item::<f32>()));
        let (copied, filled) = side.enter(|| (x.copy_(Tensor::ones([1], &device)), y.fill_(1.0)));
        for (op, earlier, error) in [
            ("to_vec", "from_host", refused(to_vec).await),
            ("item", "from_host", refused(item).await),
            ("copy_", "from_host", refused(copied).await),
            ("fill_", "zeros", refused(filled).await),
        ] {
            let [op, earlier] = [(op, "side"), (earlier, "default")].map(|(op, on)| format!("{op} on stream \"{on}\" ("));
            says(&error, ErrorKind::Unordered, &[&op, &format!("memory that {earlier}")]);
        }
    }

    async fn use_on_another_stream_is_refused_with_the_users_lines([device]) {
        let side = device.stream().label("side").build()?;
        let x = tensor(&[1.0, 2.0], [1, 2], &device).await?;
        let (made, made_at) = (x.mul(2.0).queued()?, here(0));
        let (used, used_at) = (side.enter(|| (&made).sum()), here(0));
        let error = refused(used).await;
        says(&error, ErrorKind::Unordered, &[
            &format!("sum on stream \"side\" {used_at} reads memory that mul on stream \"default\" {made_at} wrote"),
            "call side.wait_stream(&default) before it",
        ]);
        let (written, written_at) = (side.enter(|| (&made).normal_(0.0, 1.0)), here(0));
        says(&refused(written).await, ErrorKind::Unordered, &[&format!("normal_ on stream \"side\" {written_at}")]);
        made.buffer::<f32>()?.accept_contents();
        side.wait_for(&made).await?;
        assert_eq!(side.enter(|| made.sum().item::<f32>()).await?, 6.0);
    }

    async fn a_result_counts_as_allocated_at_the_users_line([device]) {
        let side = device.stream().label("side").build()?;
        let (empty, line) = (Tensor::empty([4], &device).queued()?, here(0));
        let error = refused(side.enter(|| empty.fill_(1.0))).await;
        says(&error, ErrorKind::Unordered, &[&format!("alloc on stream \"default\" {line}")]);
    }

    async fn random_numbers_depend_on_seed_and_calls_alone([one, two]) {
        let draw = async |device: &Device| {
            let x = Tensor::randn([5], device).queued()?;
            let y = Tensor::rand([3, 3], device).queued()?;
            Ok::<_, Error>((x.to_vec::<f32>().await?, y.to_vec::<f32>().await?))
        };
        one.generator().manual_seed(9);
        two.generator().manual_seed(9);
        let first = draw(&one).await?;
        assert_eq!(first, draw(&two).await?);
        assert_ne!(first, draw(&one).await?);
        one.generator().manual_seed(9);
        assert_eq!(first, draw(&one).await?);
        let own = Generator::new(9);
        let x = Tensor::empty([5], &two).normal_from_(&own, 0.0, 1.0).queued()?;
        let y = Tensor::empty([9], &two).uniform_from_(&own, 0.0, 1.0).queued()?;
        assert_eq!(first, (x.to_vec().await?, y.to_vec().await?));
        let z = Tensor::empty([1000], &one).uniform_(2.0, 3.0).queued()?;
        assert!(z.to_vec::<f32>().await?.iter().all(|z| (2.0..=3.0).contains(z)));
    }

    async fn empty_tensors_and_scalars_are_tensors([device]) {
        let none = Tensor::empty([0, 3], &device).queued()?;
        assert_eq!((none.relu().add(1.0).mul(&none).to_vec::<f32>().await?, none.is_empty()), (vec![], true));
        assert_eq!(none.sum().item::<f32>().await?, 0.0);
        assert_eq!(none.sum_rows().to_vec::<f32>().await?, [0.0; 3]);
        assert_eq!(none.t().matmul(&none).to_vec::<f32>().await?, [0.0; 9]);
        let one = Tensor::full([], 2.5, &device).queued()?;
        assert_eq!((one.shape().len(), one.item::<f32>().await?), (0, 2.5));
        assert_eq!(Tensor::ones([2], &device).mul(&one).to_vec::<f32>().await?, [2.5; 2]);
        assert_eq!(one.argmax().item::<i64>().await?, 0);
    }

    async fn what_is_dropped_in_a_chain_is_freed([device]) {
        let x = Tensor::randn([64, 64], &device).queued()?;
        let before = device.memory_stats().allocated_bytes;
        let y = x.matmul(&x).relu().add(&x).sum().queued()?;
        assert_eq!(device.memory_stats().allocated_bytes - before, 512, "only the scalar is left");
        y.item::<f32>().await?;
    }
}
