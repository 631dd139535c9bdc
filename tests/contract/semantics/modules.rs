//! Modules: a model and its parameters, and batches that several devices share.

use crate::contract;
use crate::note::{
    Net, computes_what_pytorch_computes, filled, names, shared_batches_have_the_same_bits, stored,
};
use serde_json::Value;
use warpline::prelude::*;

contract! {
    /// X18: the model of two convolutions: its parameters, and its output.
    async fn a_model_of_two_convolutions_computes_what_it_does_in_pytorch([device]) {
        let net = filled(Net::new(&device)?);
        let wanted = &stored()["two_convolutions"];
        assert_eq!(net.parameter_count() as u64, wanted["parameters"].as_u64().unwrap());
        assert_eq!((net.conv1.parameter_count(), net.parameter_count()), (520, 10_540));
        let [weight, bias] = &net.conv1.parameters()[..] else { panic!("a weight and a bias") };
        assert_eq!((weight.shape(), bias.shape()), (&[20, 1, 5, 5][..], &[20][..]));
        let all: Vec<Value> = names(net.named_parameters()).into_iter().map(Value::from).collect();
        assert_eq!(wanted["names"].as_array().unwrap(), &all);
        assert!(net.named_buffers().is_empty());
        computes_what_pytorch_computes(&net, &device).await?;
    }

    /// X21: a model on several devices gives the bits that it gives on one.
    async fn a_batch_on_several_devices_has_the_bits_of_one_device([zero, one, two]) {
        let devices = [zero, one, two];
        // Also fewer rows than devices, numbers of rows that they do not divide, and no rows.
        shared_batches_have_the_same_bits(&devices[..2], &[8, 7, 2, 1, 0]).await?;
        shared_batches_have_the_same_bits(&devices, &[9, 8, 7, 4, 2, 1, 0]).await?;
        shared_batches_have_the_same_bits(&devices[..1], &[3, 0]).await?;
    }
}
