//! The ops of neural networks: chains, values on every backend, and refusals. More values are in
//! `tests/tensors/pytorch/`.

use crate::support::says;
use crate::{contract, refused};
use warpline::Shape;
use warpline::prelude::*;

async fn tensor(values: &[f32], shape: impl Into<Shape>, device: &Device) -> warpline::Result<Tensor> {
    Tensor::from_host(values, shape, device).await
}

contract! {
    async fn a_convolution_and_an_attention_chain_without_waiting([device]) {
        let image = Tensor::new([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &device).reshape([1, 1, 3, 3]);
        let weight = Tensor::new([1.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0], &device).reshape([2, 1, 2, 2]);
        let bias = Tensor::new([0.5, 10.0], &device).queued()?;
        let y = image.conv2d(weight, Some(&bias), [1, 1], [0, 0]).queued()?;
        assert_eq!(y.shape(), [1, 2, 2, 2]);
        assert_eq!(y.to_vec::<f32>().await?, [6.5, 8.5, 12.5, 14.5, 8.0, 7.0, 5.0, 4.0]);

        let table = tensor(&[0.0, 0.0, 3.0, 4.0, -3.0, 4.0], [3, 2], &device).await?;
        let tokens = Tensor::new([1, 2, 1], &device);
        let x = table.index_select(0, tokens).queued()?;
        let (ones, zeros) = (Tensor::ones([2], &device), Tensor::zeros([2], &device));
        let normal = (&x).layer_norm(ones, zeros, 0.0).queued()?;
        assert_eq!(normal.to_vec::<f32>().await?, [-1.0, 1.0, -1.0, 1.0, -1.0, 1.0]);
        let weights = normal.matmul(normal.t()).softmax(1);
        let (largest, at) = weights.matmul(&x).max_dim(0).queued()?;
        let largest = largest.to_vec::<f32>().await?;
        assert!((largest[0] - 1.0).abs() < 1e-6 && (largest[1] - 4.0).abs() < 1e-6, "{largest:?}");
        assert_eq!(at.shape(), [2]);
        assert_eq!(x.max().item::<f32>().await?, 4.0);
        let roots = x.mul(&x).sqrt().log().exp().to_vec::<f32>().await?;
        assert!(roots.iter().zip([3.0, 4.0, 3.0, 4.0, 3.0, 4.0]).all(|(x, y)| (x - y).abs() < 1e-5));
        let zero = Tensor::zeros([1], &device).queued()?;
        let all = [zero.tanh(), zero.gelu(), zero.sigmoid(), zero.exp()];
        assert_eq!(Tensor::cat(&all, 0).to_vec::<f32>().await?, [0.0, 0.0, 0.5, 1.0]);
    }

    async fn tensors_are_joined_along_every_dimension([device]) {
        let x = Tensor::from_host(&(0..12).collect::<Vec<i64>>(), [2, 3, 2], &device).queued()?;
        let y = Tensor::from_host(&(20..28).collect::<Vec<i64>>(), [2, 2, 2], &device);
        let joined = Tensor::cat([&x.reshape([2, 3, 2]), &y], 1).queued()?;
        assert_eq!(joined.shape(), [2, 5, 2]);
        assert_eq!(
            joined.to_vec::<i64>().await?,
            [0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 6, 7, 8, 9, 10, 11, 24, 25, 26, 27]
        );
        let two = [tensor(&[1.0, 2.0], [2], &device).await?, tensor(&[3.0, 4.0], [2], &device).await?];
        for (dim, expected) in [(0, [1.0, 2.0, 3.0, 4.0]), (1, [1.0, 3.0, 2.0, 4.0])] {
            let stacked = Tensor::stack(&two, dim).queued()?;
            assert_eq!((stacked.shape(), stacked.to_vec::<f32>().await?), (&[2, 2][..], expected.to_vec()));
        }
        let none = Tensor::empty([2, 0], &device).queued()?;
        let all = Tensor::cat([&none, &Tensor::ones([2, 1], &device).queued()?, &none], 1).queued()?;
        assert_eq!((all.shape(), all.to_vec::<f32>().await?), (&[2, 1][..], vec![1.0; 2]));
        assert_eq!(Tensor::cat([&none, &none], 0).queued()?.shape(), [4, 0]);
        assert!(!Tensor::cat([&two[0]], 0).queued()?.shares_memory(&two[0]), "a join is a copy");
    }

    async fn a_join_is_checked_for_order_and_passes_errors_on([device]) {
        let side = device.stream().label("side").build()?;
        let x = Tensor::ones([2], &device).queued()?;
        let y = side.enter(|| Tensor::ones([2], &device)).queued()?;
        let error = refused(Tensor::cat([&x, &y], 0)).await;
        says(&error, ErrorKind::Unordered, &["cat on", "that ones on", "call", "wait_stream"]);
        device.default_stream()?.wait_stream(&side);
        assert_eq!(Tensor::cat([&x, &y], 0).to_vec::<f32>().await?, [1.0; 4]);
        for first in [true, false] {
            let bad = x.matmul(&x);
            let good = x.relu();
            let both = if first { [bad, good] } else { [good, bad] };
            says(&refused(Tensor::stack(both, 0)).await, ErrorKind::Shape, &["matmul on stream"]);
        }
        device.synchronize().await?;
    }

    async fn ops_of_several_launches_and_copies_can_be_captured([device]) {
        let stream = device.new_stream()?;
        let (images, weight, long) = stream.enter(|| {
            (
                Tensor::zeros([2, 1, 3, 3], &device),
                Tensor::ones([1, 1, 2, 2], &device),
                Tensor::zeros([70_000], &device),
            )
        });
        let (images, weight, long) = (images.queued()?, weight.queued()?, long.queued()?);
        let (graph, (y, max)) = stream.capture(|_| {
            let y = images.conv2d(&weight, None, [1, 1], [0, 0]);
            let joined = Tensor::cat([&y, &y], 3);
            (joined, long.max())
        })?;
        for value in [1.0, 2.5] {
            stream.enter(|| (images.fill_(value), long.fill_(-value))).1.queued()?;
            graph.launch(&stream).queued()?;
            let (y, max) = stream.enter(|| (y.to_vec::<f32>(), max.item::<f32>()));
            assert_eq!((y.await?, max.await?), (vec![4.0 * value; 16], -value));
        }
    }

    async fn maxima_of_many_elements_are_found_in_two_steps([device]) {
        let n = 100_003;
        for at in [0, 40_000, n - 1] {
            let mut values = vec![-2.0; n];
            values[at] = -1.0;
            assert_eq!(tensor(&values, [n], &device).await?.max().item::<f32>().await?, -1.0);
            values[at] = f32::NAN;
            assert!(tensor(&values, [n], &device).await?.max().item::<f32>().await?.is_nan());
        }
    }

    async fn an_index_out_of_range_makes_its_slice_nan([device]) {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], [2, 2], &device).await?;
        let indices = Tensor::new([1, -1, 2], &device).queued()?;
        let rows = x.index_select(0, &indices).to_vec::<f32>().await?;
        assert_eq!(rows[..2], [3.0, 4.0]);
        assert!(rows[2..].iter().all(|x| x.is_nan()));
        let columns = x.index_select(1, &indices).to_vec::<f32>().await?;
        assert_eq!((columns[0], columns[3]), (2.0, 4.0));
        assert!([1, 2, 4, 5].iter().all(|&i| columns[i].is_nan()));
    }

    async fn arguments_that_do_not_fit_are_refused_with_both([device]) {
        let x = tensor(&[0.0; 6], [2, 3], &device).await?;
        let row = tensor(&[0.0; 2], [2], &device).await?;
        let scalar = Tensor::ones([], &device).await?;
        let empty = Tensor::empty([2, 0], &device).await?;
        let images = Tensor::zeros([1, 2, 4, 5], &device).await?;
        let weight = Tensor::zeros([3, 2, 3, 3], &device).await?;
        let indices = Tensor::full([2, 2], 0, &device).await?;
        for (pending, op, why) in [
            (x.softmax(2), "softmax", "dimension 2 does not exist in shape [2, 3]; pass a dimension from 0 to 1"),
            (scalar.softmax(1), "softmax", "dimension 1 does not exist in shape []; pass a dimension from 0 to 0"),
            (empty.max(), "max", "the tensor has 0 elements (shape [2, 0]), so there is no largest one"),
            (x.layer_norm(&row, &row, 1e-5), "layer_norm", "the input has shape [2, 3], the weight [2] and the \
                bias [2]; for rows of 3 elements pass a weight and a bias of shape [3]"),
            (scalar.layer_norm(&row, &row, 1e-5), "layer_norm", "the input is a scalar"),
            (x.index_select(2, &indices), "index_select", "dimension 2 does not exist in shape [2, 3]"),
            (x.index_select(0, &indices), "index_select", "the input has shape [2, 3] and the indices [2, 2]; \
                pass indices of shape [n]"),
            (Tensor::cat([&x, &row], 0), "cat", "the shapes are [2, 3] and [2], which differ in more than \
                dimension 0; pass tensors with equal other sizes"),
            (Tensor::cat([&x, &empty], 0), "cat", "the shapes are [2, 3] and [2, 0]"),
            (Tensor::cat([&x], 2), "cat", "dimension 2 does not exist in shape [2, 3]"),
            (Tensor::cat([&scalar], 0), "cat", "the tensors are scalars, of shape [], and have no dimension"),
            (Tensor::stack([&x, &row], 0), "stack", "the shapes are [2, 3] and [2]; pass tensors of the same"),
            (Tensor::stack([&x], 3), "stack", "dimension 3 does not exist in shape [2, 3]; pass a dimension from \
                0 to 2"),
            (x.conv2d(&weight, None, [1, 1], [0, 0]), "conv2d", "the input has 2 dimensions (shape [2, 3]); pass \
                images of shape [n, c, h, w]"),
            (images.conv2d(&x, None, [1, 1], [0, 0]), "conv2d", "the weight has 2 dimensions (shape [2, 3]); pass \
                a weight of shape [output channels, 2, height, width]"),
            (weight.conv2d(&images, None, [1, 1], [0, 0]), "conv2d", "the weight of shape [1, 2, 4, 5] has size 4 in dimension \
                2, where the padded input has 3; pass a smaller weight or more padding"),
            (images.reshape([2, 1, 4, 5]).conv2d(&weight, None, [1, 1], [0, 0]), "conv2d", "the input has shape \
                [2, 1, 4, 5] and the weight [3, 2, 3, 3], with 1 channels in the one and 2 in the other"),
            (images.conv2d(&weight, Some(&row), [1, 1], [0, 0]), "conv2d", "the weight has shape [3, 2, 3, 3] and \
                the bias [2]; for 3 output channels pass a bias of shape [3]"),
            (images.conv2d(&weight, None, [1, 0], [0, 0]), "conv2d", "the stride is [1, 0]"),
        ] {
            let error = refused(pending).await;
            says(&error, ErrorKind::Shape, &[&format!("{op} on stream \"default\" (tests/contract/nn.rs:"), why]);
        }
        let error = refused(empty.max_dim(1)).await;
        says(&error, ErrorKind::Shape, &["max_dim on", "dimension 1 of shape [2, 0] is 0, so there is no largest"]);
        let error = refused(Tensor::cat([(); 0].map(|()| &x), 0)).await;
        says(&error, ErrorKind::InvalidArgument, &["cat (tests/contract/nn.rs:", "0 tensors cannot be joined"]);
    }

    async fn other_types_and_transposed_views_are_refused([device]) {
        let x = tensor(&[0.0; 6], [2, 3], &device).await?;
        let (t, n) = (x.t().await?, Tensor::full([2, 3], 1, &device).await?);
        let (row, indices) = (Tensor::ones([3], &device).await?, Tensor::full([1], 0, &device).await?);
        for (view, integers) in [
            (t.exp(), n.exp()),
            (t.softmax(0), n.softmax(0)),
            (t.max(), n.max()),
            (t.reshape([1, 2, 3]).conv2d(&row, None, [1, 1], [0, 0]), n.layer_norm(&row, &row, 0.1)),
            (Tensor::cat([&t], 0), n.sqrt()),
            (Tensor::stack([&t], 0), n.gelu()),
            (t.index_select(0, &indices), x.index_select(0, &row)),
            (t.index_select(0, &indices), n.index_select(0, &indices)),
        ] {
            says(&refused(view).await, ErrorKind::Shape, &["the tensor is a transposed view of shape [3, 2]"]);
            says(&refused(integers).await, ErrorKind::DTypeMismatch, &["and the op takes"]);
        }
        let joined = Tensor::cat([&n.to(DType::U8).await?, &x.to(DType::F16).await?, &n], 0).await?;
        assert_eq!((joined.shape(), joined.dtype()), (&[6, 3][..], DType::F16));
        assert_eq!(joined.to(DType::F32).sum().item::<f32>().await?, 12.0);
    }
}
