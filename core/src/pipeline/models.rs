//! The parameter lists of well-known models: names and shapes in the order of their definition. The tests of placement and the benchmarks
//! use them.
//!
//! Names and shapes are those of torchvision (ResNet-50, VGG-16) and of Hugging Face's `BertModel` (BERT-large, uncased) and `GPT2Model`
//! (GPT-2, the smallest).

use crate::types::{DType, TensorSpec};

/// Parameters of ResNet-50.
pub const RESNET50_PARAMETERS: u64 = 25_557_032;
/// Parameters of VGG-16.
pub const VGG16_PARAMETERS: u64 = 138_357_544;
/// Parameters of BERT-large with its pooler.
pub const BERT_LARGE_PARAMETERS: u64 = 335_141_888;

/// Parameters of the smallest GPT-2. Its output layer shares the embedding of its input.
pub const GPT2_PARAMETERS: u64 = 124_439_808;

/// ResNet-50: 161 tensors, mostly small ones.
pub fn resnet50() -> Vec<TensorSpec> {
    let mut list = List::default();
    list.convolution("conv1", 64, 3, 7, false);
    list.norm("bn1", 64);
    let mut channels = 64;
    for (layer, (blocks, width)) in [(3, 64), (4, 128), (6, 256), (3, 512)].into_iter().enumerate() {
        for block in 0..blocks {
            let name = format!("layer{}.{block}", layer + 1);
            list.convolution(&format!("{name}.conv1"), width, channels, 1, false);
            list.norm(&format!("{name}.bn1"), width);
            list.convolution(&format!("{name}.conv2"), width, width, 3, false);
            list.norm(&format!("{name}.bn2"), width);
            list.convolution(&format!("{name}.conv3"), 4 * width, width, 1, false);
            list.norm(&format!("{name}.bn3"), 4 * width);
            if block == 0 {
                list.convolution(&format!("{name}.downsample.0"), 4 * width, channels, 1, false);
                list.norm(&format!("{name}.downsample.1"), 4 * width);
            }
            channels = 4 * width;
        }
    }
    list.linear("fc", 1000, 2048);
    list.0
}

/// VGG-16: 32 tensors, three quarters of the bytes in one of them.
pub fn vgg16() -> Vec<TensorSpec> {
    let mut list = List::default();
    // Positions in torchvision's `features`. Activations and poolings have positions there too.
    let convolutions = [
        (0, 64, 3),
        (2, 64, 64),
        (5, 128, 64),
        (7, 128, 128),
        (10, 256, 128),
        (12, 256, 256),
        (14, 256, 256),
        (17, 512, 256),
        (19, 512, 512),
        (21, 512, 512),
        (24, 512, 512),
        (26, 512, 512),
        (28, 512, 512),
    ];
    for (position, out, channels) in convolutions {
        list.convolution(&format!("features.{position}"), out, channels, 3, true);
    }
    list.linear("classifier.0", 4096, 512 * 7 * 7);
    list.linear("classifier.3", 4096, 4096);
    list.linear("classifier.6", 1000, 4096);
    list.0
}

/// BERT-large: 391 tensors, 24 equal layers behind one large embedding.
pub fn bert_large() -> Vec<TensorSpec> {
    const HIDDEN: u64 = 1024;
    const INTERMEDIATE: u64 = 4096;
    let mut list = List::default();
    list.tensor("embeddings.word_embeddings.weight".to_owned(), &[30_522, HIDDEN]);
    list.tensor("embeddings.position_embeddings.weight".to_owned(), &[512, HIDDEN]);
    list.tensor("embeddings.token_type_embeddings.weight".to_owned(), &[2, HIDDEN]);
    list.norm("embeddings.LayerNorm", HIDDEN);
    for layer in 0..24 {
        let name = format!("encoder.layer.{layer}");
        for projection in
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
        {
            list.linear(&format!("{name}.{projection}"), HIDDEN, HIDDEN);
        }
        list.norm(&format!("{name}.attention.output.LayerNorm"), HIDDEN);
        list.linear(&format!("{name}.intermediate.dense"), INTERMEDIATE, HIDDEN);
        list.linear(&format!("{name}.output.dense"), HIDDEN, INTERMEDIATE);
        list.norm(&format!("{name}.output.LayerNorm"), HIDDEN);
    }
    list.linear("pooler.dense", HIDDEN, HIDDEN);
    list.0
}

/// GPT-2 with 12 layers: 148 tensors, a third of the bytes in the embedding.
pub fn gpt2() -> Vec<TensorSpec> {
    const HIDDEN: u64 = 768;
    let mut list = List::default();
    list.tensor("wte.weight".to_owned(), &[50_257, HIDDEN]);
    list.tensor("wpe.weight".to_owned(), &[1024, HIDDEN]);
    for layer in 0..12 {
        let name = format!("h.{layer}");
        list.norm(&format!("{name}.ln_1"), HIDDEN);
        // These projections are stored with their inputs first.
        list.linear_transposed(&format!("{name}.attn.c_attn"), HIDDEN, 3 * HIDDEN);
        list.linear_transposed(&format!("{name}.attn.c_proj"), HIDDEN, HIDDEN);
        list.norm(&format!("{name}.ln_2"), HIDDEN);
        list.linear_transposed(&format!("{name}.mlp.c_fc"), HIDDEN, 4 * HIDDEN);
        list.linear_transposed(&format!("{name}.mlp.c_proj"), 4 * HIDDEN, HIDDEN);
    }
    list.norm("ln_f", HIDDEN);
    list.0
}

#[derive(Default)]
struct List(Vec<TensorSpec>);

impl List {
    fn convolution(&mut self, name: &str, out: u64, channels: u64, kernel: u64, bias: bool) {
        self.tensor(format!("{name}.weight"), &[out, channels, kernel, kernel]);
        if bias {
            self.tensor(format!("{name}.bias"), &[out]);
        }
    }

    fn linear(&mut self, name: &str, out: u64, inputs: u64) {
        self.tensor(format!("{name}.weight"), &[out, inputs]);
        self.tensor(format!("{name}.bias"), &[out]);
    }

    fn linear_transposed(&mut self, name: &str, inputs: u64, out: u64) {
        self.tensor(format!("{name}.weight"), &[inputs, out]);
        self.tensor(format!("{name}.bias"), &[out]);
    }

    fn norm(&mut self, name: &str, channels: u64) {
        self.tensor(format!("{name}.weight"), &[channels]);
        self.tensor(format!("{name}.bias"), &[channels]);
    }

    fn tensor(&mut self, name: String, shape: &[u64]) {
        self.0.push(TensorSpec::new(name, DType::F32, shape.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_lists_have_the_published_numbers_of_parameters() {
        let table = [
            (resnet50(), 161, RESNET50_PARAMETERS),
            (vgg16(), 32, VGG16_PARAMETERS),
            (bert_large(), 391, BERT_LARGE_PARAMETERS),
            (gpt2(), 148, GPT2_PARAMETERS),
        ];
        for (specs, tensors, parameters) in table {
            assert_eq!(specs.len(), tensors);
            assert_eq!(specs.iter().map(|spec| spec.shape.iter().product::<u64>()).sum::<u64>(), parameters);
            assert_eq!(specs.iter().map(TensorSpec::key).collect::<BTreeSet<_>>().len(), tensors, "names are unique");
        }
    }
}
