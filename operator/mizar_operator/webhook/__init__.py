"""The admission webhook: a separate process that translates resource names and checks quotas.

It keeps no state except copies of GPUPools and GPUQuotas, so any number of replicas may run.
"""
