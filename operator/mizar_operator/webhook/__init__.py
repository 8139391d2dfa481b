"""The admission webhook: a separate process that translates resource names and checks quotas.

It keeps no state but copies of GPUPools and GPUQuotas; any number of it may run.
"""
