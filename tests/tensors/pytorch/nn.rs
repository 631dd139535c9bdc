//! The ops of neural networks.

use super::*;

ops! {
    40 cases each;
    exp: |inputs, device| one(tensor(&inputs[0], device)?.exp());
    log: |inputs, device| one(tensor(&inputs[0], device)?.log());
    sqrt: |inputs, device| one(tensor(&inputs[0], device)?.sqrt());
    tanh: |inputs, device| one(tensor(&inputs[0], device)?.tanh());
    sigmoid: |inputs, device| one(tensor(&inputs[0], device)?.sigmoid());
    gelu: |inputs, device| one(tensor(&inputs[0], device)?.gelu());
    softmax: |inputs, device| one(tensor(&inputs[0], device)?.softmax(integer(&inputs[1])));
    max: |inputs, device| one(tensor(&inputs[0], device)?.max());
    max_dim: |inputs, device| {
        let (values, indices) = tensor(&inputs[0], device)?.max_dim(integer(&inputs[1])).queued()?;
        Ok(vec![values, indices])
    };
    layer_norm: |inputs, device| {
        let [x, weight, bias] = tensors(&inputs[..3], device)?;
        one(x.layer_norm(&weight, &bias, number(&inputs[3])))
    };
    cat: |inputs, device| {
        let (dim, parts) = inputs.split_first().expect("the dimension is first");
        let parts: Vec<_> = parts.iter().map(|part| tensor(part, device)).collect::<Result<_>>()?;
        one(Tensor::cat(&parts, integer(dim)))
    };
    stack: |inputs, device| {
        let (dim, parts) = inputs.split_first().expect("the dimension is first");
        let parts: Vec<_> = parts.iter().map(|part| tensor(part, device)).collect::<Result<_>>()?;
        one(Tensor::stack(&parts, integer(dim)))
    };
    index_select: |inputs, device| {
        let [x, indices] = tensors(&[inputs[0].clone(), inputs[2].clone()], device)?;
        one(x.index_select(integer(&inputs[1]), &indices))
    };
    conv2d: |inputs, device| {
        let [x, weight] = tensors(&inputs[..2], device)?;
        let bias = inputs[2].is_object().then(|| tensor(&inputs[2], device)).transpose()?;
        let [stride, padding] = [&inputs[3], &inputs[4]].map(|pair| {
            let pair = integers(&pair["data"]);
            [pair[0] as usize, pair[1] as usize]
        });
        one(x.conv2d(&weight, bias.as_ref(), stride, padding))
    };
}
